// `tributary simulate`: the sequencer, the placement and the plan of a pool larger than this
// machine, with no arithmetic behind them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "core/placement/spread_policy.h"
#include "core/plan/plan.h"
#include "core/workload/trace.h"

namespace tributary {

struct SimulateOptions {
  std::optional<std::filesystem::path> trace;  // none: the built-in workload
  int workers = 64;
  int running = 256;          // sequences decoding at the same time
  std::int64_t requests = 0;  // the first of the trace; 0: all
  SpreadPolicy spread = SpreadPolicy::kAuto;
  Exchange exchange = Exchange::kAuto;
  int leaf_tokens = 2048;
  std::string shape = "deepseek-v3";
  std::string machine = "h200";  // whose built-in constants placement goes by
  int workers_per_node = 8;
  double kv_gib = 64;  // page memory of each worker, one layer's rows counted
  std::uint64_t seed = 1;
  std::optional<std::filesystem::path> json;
};

/// One distribution over steps.
struct Distribution {
  double mean = 0;
  double p99 = 0;
  double max = 0;
};

struct SimulateReport {
  std::int64_t requests = 0;
  std::int64_t steps = 0;
  std::int64_t full_steps = 0;    // steps with all slots taken: those that are measured
  Distribution step_us;           // predicted, with the constants that placement goes by
  Distribution balance;           // max / mean cached tokens per worker
  Distribution home_balance;      // max / mean homed sequences per worker
  double mean_spread = 0;         // workers that hold a sequence
  double mean_roots = 0;          // subtree roots of a sequence, its home's own included
  double mean_extents = 0;        // runs of leaves on one worker, per sequence
  double busiest_home_roots = 0;  // inbound roots of the busiest home, mean over steps
  double busiest_home_bytes = 0;  // inbound bytes of it, one layer
  double exchange_bytes = 0;      // all workers, one step and layer, mean
  double all_gather_share = 0;    // of steps, where `auto` chose it
  std::uint64_t placements = 0;
  double placements_per_second = 0;  // decisions over the time spent deciding
  double plan_us = 0;                // routing and one worker's plan, mean over steps
};

[[nodiscard]] SimulateReport simulate(const SimulateOptions& options);
[[nodiscard]] std::string to_text(const SimulateReport& report);
[[nodiscard]] std::string to_json(const SimulateReport& report);

}  // namespace tributary
