// Constants of the cost model for machines that have not been measured, each with its source.
#pragma once

#include <span>
#include <string_view>

#include "core/cost/machine_costs.h"
#include "core/cost/round_work.h"

namespace tributary {

struct BuiltInCosts {
  std::string_view name;
  std::string_view description;
  double memory_gib = 0;  // of a worker; 0: not known
  MachineCosts costs;
};

/// `h100`, `h200`: one GPU per worker. Not measured: bandwidths are 90% of the datasheet's for HBM
/// (bench/gpu_model.py has 88 to 92%), and the datasheet's for NVLink (450 GB/s per direction) and
/// for a network card of 400 Gbit/s. Arithmetic is 660 TFLOP/s, which FlashMLA's authors publish
/// for dense MLA decode on an H800 (April 2025); no kernel reaches the datasheet's 989. It overlaps
/// the reading of rows. Latencies are orders of magnitude: vendors publish none.
///
/// `cpu`: the default of a pool. Half a server processor per worker attends at 2 TFLOP/s (bf16
/// matrix instructions; others reach a tenth) and reads 100 GB/s. Exchanges take 4 GB/s and 20 us
/// per message inside a machine, 25 Gbit/s and 50 us between machines. Attention is faster than on
/// most machines and links are slower, so a spread that pays by these figures pays elsewhere.
[[nodiscard]] std::span<const BuiltInCosts> built_in_costs() noexcept;
/// Throws kNotFound with the list.
[[nodiscard]] const BuiltInCosts& find_built_in_costs(std::string_view name);

/// `cpu`, for rounds of DeepSeek-V3's 128 heads in a pool of one node.
[[nodiscard]] CostModelConfig default_cost_model(int leaf_tokens = 2048, int layers = 1);

}  // namespace tributary
