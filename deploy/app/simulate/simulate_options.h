// The options of `tributary simulate`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/placement/spread_policy.h"
#include "core/plan/plan.h"
#include "core/rebalance/mover.h"
#include "deploy/app/simulate/arrivals.h"

namespace tributary {

struct RateList {
  std::vector<double> values;
};

struct SimulateOptions {
  std::optional<std::filesystem::path> trace;  // none: the built-in workload
  std::int64_t requests = 0;                   // the first of the trace; 0: all
  double length_scale = 1;                     // of prompts and outputs
  std::uint64_t seed = 1;
  // The tier.
  int pools = 1;
  int workers = 8;  // of each pool
  int workers_per_node = 8;
  double kv_gib = 100;         // page memory of each worker, all layers
  std::string costs = "h200";  // of the machines, as of a worker
  std::string shape = "deepseek-v3";
  int leaf_tokens = 2048;
  Exchange exchange = Exchange::kAuto;
  double other_ms = 0;                              // of a step, outside the tier
  double max_step_ms = 0;                           // that placement goes by; 0: none
  double move_bytes_per_s = kDefaultMoveBytesPerS;  // of a pool; 0: leaves stay
  PrefillConfig prefill;
  // The experiment.
  std::vector<SpreadPolicy> spread = {SpreadPolicy::kSingle, SpreadPolicy::kAll,
                                      SpreadPolicy::kAuto};
  RateList rates;            // requests a second; none: the trace's own, without `search`
  std::int64_t running = 0;  // this many requests in flight instead; 0: arrivals at a rate
  double tpot_ms = 50;       // the bound
  bool search = false;       // for the highest rate that meets the bounds
  double wait_ms = 1000;     // bound of the search on the p99 wait for room in a pool
  double warmup_s = 30;
  double measure_s = 60;
  std::int64_t max_waiting = 4096;
  std::int64_t check_every = 500;  // steps of a pool
  std::optional<std::filesystem::path> json;
  std::optional<std::filesystem::path> svg;
};

/// `single,auto`. Throws kInvalidArgument.
[[nodiscard]] std::vector<SpreadPolicy> parse_spread_list(const std::string& text);
[[nodiscard]] std::string flag_text(const std::vector<SpreadPolicy>& policies);
/// `2.5,10`. Throws kInvalidArgument.
[[nodiscard]] RateList parse_rate_list(const std::string& text);
[[nodiscard]] std::string flag_text(const RateList& rates);

}  // namespace tributary
