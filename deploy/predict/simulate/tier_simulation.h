// A tier in time: arrivals, a prefill tier, admission to one of several pools, and their steps, as
// a queue of events. It uses no threads and no clock of the machine: equal input gives equal
// output.
#pragma once

#include <cstdint>
#include <span>

#include "core/workload/trace.h"
#include "deploy/predict/simulate/arrivals.h"
#include "deploy/predict/simulate/quantiles.h"
#include "deploy/predict/simulate/simulated_pool.h"

namespace tributary {

struct TierConfig {
  SimulatedPoolConfig pool;  // of each
  int pools = 1;
  double length_scale = 1;  // of the trace's lengths: what its hash_ids stand for
  SpreadPolicy spread = SpreadPolicy::kAuto;
  PrefillConfig prefill;
  /// Arrivals per second, the trace repeated at this mean rate. If `in_flight` is above 0, that
  /// many requests are in the tier at any time instead: one ends, the next arrives.
  double rate = 1;
  std::int64_t in_flight = 0;
  /// Requests that may wait for room in a pool, all pools together; more are refused.
  std::int64_t max_waiting = 4096;
  double other_ms = 0;  // of a step, outside the tier: the rest of the model
  double warmup_s = 30;
  double measure_s = 60;      // after the warm-up: the time that the statistics cover
  double tpot_bound_ms = 50;  // for the goodput
  /// One step in this many, of each pool, is checked against its full plan; 0: none.
  std::int64_t check_every = 0;
};

/// The state of each request at the end: arrived == sum of the others.
struct RequestCounts {
  std::int64_t arrived = 0;
  std::int64_t finished = 0;
  std::int64_t running = 0;     // admitted and not finished
  std::int64_t in_prefill = 0;  // its queue included
  std::int64_t waiting = 0;     // for room in a pool
  std::int64_t refused = 0;     // too many were waiting
  std::int64_t too_large = 0;   // an empty pool could not hold it under this policy

  friend bool operator==(const RequestCounts&, const RequestCounts&) = default;
};

/// The measured time's results, where a field does not say otherwise. Seconds and milliseconds as
/// the names say.
struct TierResult {
  RequestCounts requests;  // of the whole run
  double arrived_per_s = 0;
  double finished_per_s = 0;
  double goodput_per_s = 0;  // finished ones whose mean time per token met the bound
  double tokens_per_s = 0;
  Distribution ttft_s;          // from arrival to the first token
  Distribution prefill_wait_s;  // for a prefill server
  Distribution room_wait_s;     // for room in a pool
  /// Times between two tokens of a sequence: a sample for each token but the first.
  Distribution tpot_ms;
  /// The same times as means of whole requests.
  Distribution request_tpot_ms;
  // Means over time; a pool without sequences counts as empty.
  double running = 0;    // sequences, all pools
  double occupancy = 0;  // share of the pages in use or promised
  // Means over the time of steps.
  double balance = 0;  // busiest worker's keys / mean, within a pool
  PhaseTimes phase_us{};
  double other_us = 0;  // of a step beside its phases
  LinkBytes bytes_per_token;
  double all_gather_share = 0;
  // The next fields count the checked steps of the whole run.
  std::int64_t checks = 0;
  double worst_check = 0;  // relative difference of the clock's step to predict_step's
  bool bytes_agree = true;
  std::int64_t checked_tokens = 0;         // new ones of those steps
  double plan_bytes = 0, least_bytes = 0;  // of all checked steps, see least_exchange_bytes()
  double mean_spread = 0, mean_roots = 0, busiest_home_roots = 0;
  // The next fields count the whole run.
  std::int64_t steps = 0;
  std::uint64_t placements = 0;
  std::int64_t prompt_tokens = 0;   // of admitted requests
  std::int64_t present_tokens = 0;  // of them, that the pool had: blocks of other requests
  std::int64_t peak_running = 0;
  std::uint64_t moves = 0;  // of leaves, completed
  double moved_bytes = 0;
  double copy_s = 0;  // added to steps by the copies, all pools together
};

/// Time that the machine took; the only result that differs from run to run.
struct TierEffort {
  double seconds = 0;
  double admit_seconds = 0;  // of it, in placement and admission
};

/// Throws kInvalidArgument.
[[nodiscard]] TierResult simulate_tier(const TierConfig& config,
                                       std::span<const TraceRequest> trace,
                                       TierEffort* effort = nullptr);

}  // namespace tributary
