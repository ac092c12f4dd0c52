#include "deploy/app/plan/vendor_machines.h"

#include <array>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

/// Peaks of the data sheets: what a kernel reaches is less, and only `tributary bench` says how
/// much. Latencies are orders of magnitude: vendors publish none for these operations.
struct Figures {
  std::string_view name, description;
  double memory_gib;
  double memory_gb_s;   // HBM
  double bf16_tflops;   // dense
  double nvlink_gb_s;   // one direction
  double network_gb_s;  // a GPU's network card
};
constexpr std::array kFigures{
    Figures{"h100", "NVIDIA H100 SXM: 3.35 TB/s, 989 TFLOP/s bf16, NVLink 450 GB/s, 400 Gbit/s", 80,
            3350, 989, 450, 50},
    Figures{"h200", "NVIDIA H200 SXM: 4.8 TB/s, 989 TFLOP/s bf16, NVLink 450 GB/s, 400 Gbit/s", 141,
            4800, 989, 450, 50},
};
constexpr double kLaunchUs = 5;   // a kernel's launch and its neighbours' gap
constexpr double kLinkUs = 3;     // a message over NVLink
constexpr double kNetworkUs = 8;  // one over a network of that class
constexpr double kHostUs = 20;    // an agreement between hosts, an order

}  // namespace

VendorMachine vendor_machine(std::string_view gpu) {
  std::string known;
  for (const Figures& f : kFigures) {
    if (f.name != gpu) {
      known += (known.empty() ? "" : ", ") + std::string(f.name);
      continue;
    }
    const double byte_ns = 1 / f.memory_gb_s;
    const double gflop_us = 1e3 / f.bf16_tflops;
    return {.machine = {.description = std::string(f.description),
                        .source = "vendor's figures, NOT measured",
                        .backend = std::string(f.name),
                        .communicator = "nccl",
                        .workers = 1,
                        .threads = 0,
                        .costs = {.attend_us = kLaunchUs,
                                  .attend_byte_ns = byte_ns,
                                  .attend_gflop_us = gflop_us,
                                  .merge_us = kLaunchUs,
                                  .merge_byte_ns = 3 * byte_ns,  // two states read, one written
                                  .record_byte_ns = 2 * byte_ns,
                                  .weight_byte_ns = byte_ns,
                                  .weight_gflop_us = gflop_us,
                                  .all_gather_message_us = kLinkUs,
                                  .all_gather_byte_ns = 1 / f.nvlink_gb_s,
                                  .all_to_all_message_us = kLinkUs,
                                  .all_to_all_byte_ns = 1 / f.nvlink_gb_s,
                                  .network_message_us = kNetworkUs,
                                  .network_byte_ns = 1 / f.network_gb_s,
                                  .round_us = kHostUs,
                                  .step_us = kHostUs}},
            .memory_gib = f.memory_gib};
  }
  fail(ErrorCode::kNotFound, "no figures for {}; there are: {}", quote(gpu), known);
}

}  // namespace tributary
