// `tributary simulate`: a tier under a trace's arrivals in predicted time. Placement, plans and
// admission are the real ones; no arithmetic runs behind them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/placement/spread_policy.h"
#include "deploy/predict/simulate/rate_search.h"
#include "deploy/predict/simulate/simulate_options.h"
#include "deploy/predict/simulate/tier_simulation.h"

namespace tributary {

/// One run.
struct SimulatedPoint {
  SpreadPolicy spread = SpreadPolicy::kAuto;
  double rate = 0;  // 0: a fixed number in flight
  TierResult result;
};

struct SearchResult {
  SpreadPolicy spread = SpreadPolicy::kAuto;
  RateBracket rate;
  std::string binds;  // what fails at rate.fails
};

struct SimulateReport {
  std::string machine;  // with the source of its constants
  std::string shape;
  int topk = 0;  // rows that a token selects at most; 0: it attends to all
  int pools = 1;
  int workers = 1;
  int workers_per_node = 1;
  std::int64_t pages_per_worker = 0;
  double tpot_ms = 0;
  double wait_ms = 0;
  std::int64_t trace_requests = 0;
  double trace_rate = 0;               // its own, requests a second
  std::vector<SimulatedPoint> points;  // by policy, then by rate
  std::vector<SearchResult> searches;
  // The cost on the machine that simulates.
  TierEffort effort;
  double peak_memory_bytes = 0;
};

/// Throws kInvalidArgument, kNotFound, kIo, kMalformedInput; kTooLarge if no request fits.
[[nodiscard]] SimulateReport simulate(const SimulateOptions& options);
[[nodiscard]] std::string to_text(const SimulateReport& report);
[[nodiscard]] std::string to_json(const SimulateReport& report);
/// p99 time per output token against the rate, a line for each policy.
[[nodiscard]] std::string to_svg(const SimulateReport& report);

/// Whether a run meets both bounds without a refusal. Requests that fit no empty pool do not count.
[[nodiscard]] bool meets_bounds(const TierResult& result, double tpot_ms, double wait_ms);

}  // namespace tributary
