// The arrival times of requests, and the prefill tier's time for their prompts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <span>
#include <vector>

#include "core/workload/trace.h"

namespace tributary {

/// A trace's requests repeated at its own pace times a factor: the gaps between arrivals keep their
/// proportions. The mean gap lies between the last request of a round and the first of the next.
class Arrivals {
 public:
  /// `requests_per_second` > 0: the mean rate. Throws kInvalidArgument without a request. The trace
  /// must outlive the object. Requests that all have one timestamp come at equal distances.
  Arrivals(std::span<const TraceRequest> trace, double requests_per_second);

  /// The request of arrival `number`, from 0 on: request number % trace.size().
  [[nodiscard]] std::size_t request(std::int64_t number) const noexcept;
  /// Seconds from the start; never decreases in `number`.
  [[nodiscard]] double time_s(std::int64_t number) const noexcept;

  /// The trace's own mean rate; 0 if all its timestamps are equal.
  [[nodiscard]] static double own_rate(std::span<const TraceRequest> trace) noexcept;

 private:
  std::span<const TraceRequest> trace_;
  double gap_s_;           // mean
  double seconds_per_ms_;  // of the trace; 0: equal distances
};

struct PrefillConfig {
  int servers = 0;                    // 0: prompts are ready when they arrive
  double tokens_per_second = 10'000;  // of each server
};

/// Servers that take whole prompts in order of arrival.
class PrefillServers {
 public:
  explicit PrefillServers(const PrefillConfig& config);

  struct Times {
    double begin_s = 0, end_s = 0;
  };
  /// Serves a prompt that arrives no earlier than the last one did.
  [[nodiscard]] Times serve(double arrival_s, std::int64_t prompt_tokens);

 private:
  PrefillConfig config_;
  std::priority_queue<double, std::vector<double>, std::greater<>> free_from_s_;
};

}  // namespace tributary
