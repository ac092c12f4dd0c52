#include "core/cost/built_in_costs.h"

#include <array>
#include <string>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/model/mla_shape.h"
#include "core/model/pool_shape.h"

namespace tributary {
namespace {

constexpr double gpu_byte_ns(double datasheet_gb_s) {
  return 1 / (0.9 * datasheet_gb_s);
}

constexpr MachineCosts hopper(double memory_gb_s) {
  constexpr double kLaunchUs = 5;   // a kernel's launch and its neighbours' gap
  constexpr double kLinkUs = 3;     // a message over NVLink
  constexpr double kNetworkUs = 8;  // one over a network of that class
  constexpr double kHostUs = 20;    // an agreement between hosts, an order
  constexpr double kGflopUs = 1e3 / 660;
  constexpr double kNvlinkByteNs = 1.0 / 450;
  const double byte_ns = gpu_byte_ns(memory_gb_s);
  return {.attend_us = kLaunchUs,
          .attend_task_us = 0,
          .attend_byte_ns = byte_ns,
          .attend_gflop_us = kGflopUs,
          .attend_overlap = 1,
          .merge_us = kLaunchUs,
          .merge_byte_ns = 3 * byte_ns,  // two states read, one written
          .record_us = 0,
          .record_byte_ns = 2 * byte_ns,
          .weight_byte_ns = byte_ns,
          .weight_gflop_us = kGflopUs,
          .all_gather_message_us = kLinkUs,
          .all_gather_byte_ns = kNvlinkByteNs,
          .all_to_all_message_us = kLinkUs,
          .all_to_all_byte_ns = kNvlinkByteNs,
          .network_message_us = kNetworkUs,
          .network_byte_ns = 1.0 / 50,
          .round_us = kHostUs,
          .step_us = kHostUs};
}

constexpr std::array kBuiltIn{
    BuiltInCosts{"h100",
                 "NVIDIA H100 SXM: 3.0 of 3.35 TB/s, MLA at 660 TFLOP/s, NVLink 450 GB/s, "
                 "400 Gbit/s",
                 80, hopper(3350)},
    BuiltInCosts{"h200",
                 "NVIDIA H200 SXM: 4.3 of 4.8 TB/s, MLA at 660 TFLOP/s, NVLink 450 GB/s, "
                 "400 Gbit/s",
                 141, hopper(4800)},
    BuiltInCosts{"cpu", "half a server processor: 2 TFLOP/s, 100 GB/s, exchange 4 GB/s, 25 Gbit/s",
                 0,
                 MachineCosts{.attend_us = 5,
                              .attend_task_us = 0.5,
                              .attend_byte_ns = 1.0 / 100,
                              .attend_gflop_us = 1e3 / 2,
                              .merge_us = 2,
                              .merge_byte_ns = 3.0 / 100,
                              .record_us = 0,
                              .record_byte_ns = 2.0 / 100,
                              .weight_byte_ns = 1.0 / 100,
                              .weight_gflop_us = 1e3 / 2,
                              .all_gather_message_us = 20,
                              .all_gather_byte_ns = 1.0 / 4,
                              .all_to_all_message_us = 20,
                              .all_to_all_byte_ns = 1.0 / 4,
                              .network_message_us = 50,
                              .network_byte_ns = 1.0 / 3.1,
                              .plan_item_us = 1,
                              .round_us = 50,
                              .step_us = 50}}};

}  // namespace

std::span<const BuiltInCosts> built_in_costs() noexcept {
  return kBuiltIn;
}

const BuiltInCosts& find_built_in_costs(std::string_view name) {
  std::string known;
  for (const BuiltInCosts& machine : kBuiltIn) {
    if (machine.name == name) return machine;
    known += (known.empty() ? "" : ", ") + std::string(machine.name);
  }
  fail(ErrorCode::kNotFound, "no figures for {}; there are: {}", quote(name), known);
}

CostModelConfig default_cost_model(int leaf_tokens, int layers) {
  return {
      .costs = find_built_in_costs("cpu").costs,
      .attention = attention_shape(find_mla_shape("deepseek-v3"), RowFormat::kBF16, DType::kBF16),
      .projection = {},
      .layers = layers,
      .leaf_tokens = leaf_tokens,
      .workers_per_node = 1024};
}

}  // namespace tributary
