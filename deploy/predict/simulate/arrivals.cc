#include "deploy/predict/simulate/arrivals.h"

#include <algorithm>

#include "core/base/error.h"

namespace tributary {

double Arrivals::own_rate(std::span<const TraceRequest> trace) noexcept {
  if (trace.size() < 2) return 0;
  const double span_s = (trace.back().timestamp_ms - trace.front().timestamp_ms) * 1e-3;
  return span_s > 0 ? static_cast<double>(trace.size() - 1) / span_s : 0;
}

Arrivals::Arrivals(std::span<const TraceRequest> trace, double requests_per_second)
    : trace_(trace), gap_s_(1 / requests_per_second) {
  if (trace.empty()) fail(ErrorCode::kInvalidArgument, "the trace holds no request");
  if (!(requests_per_second > 0)) {
    fail(ErrorCode::kInvalidArgument, "{} requests a second, expected more than 0",
         requests_per_second);
  }
  seconds_per_ms_ = own_rate(trace) * 1e-3 / requests_per_second;
}

std::size_t Arrivals::request(std::int64_t number) const noexcept {
  return static_cast<std::size_t>(number) % trace_.size();
}

double Arrivals::time_s(std::int64_t number) const noexcept {
  if (seconds_per_ms_ == 0) return static_cast<double>(number) * gap_s_;
  const auto size = static_cast<std::int64_t>(trace_.size());
  const std::int64_t repeats = number / size;
  const double first_ms = trace_.front().timestamp_ms;
  return static_cast<double>(repeats * size) * gap_s_ +
         (trace_[request(number)].timestamp_ms - first_ms) * seconds_per_ms_;
}

PrefillServers::PrefillServers(const PrefillConfig& config) : config_(config) {
  if (config.servers < 0 || !(config.tokens_per_second > 0)) {
    fail(ErrorCode::kInvalidArgument,
         "{} prefill servers of {} tokens a second, expected 0 or more of more than 0",
         config.servers, config.tokens_per_second);
  }
  for (int i = 0; i < config.servers; ++i) free_from_s_.push(0);
}

PrefillServers::Times PrefillServers::serve(double arrival_s, std::int64_t prompt_tokens) {
  if (free_from_s_.empty()) return {arrival_s, arrival_s};
  const double begin_s = std::max(arrival_s, free_from_s_.top());
  const double end_s = begin_s + static_cast<double>(prompt_tokens) / config_.tokens_per_second;
  free_from_s_.pop();
  free_from_s_.push(end_s);
  return {begin_s, end_s};
}

}  // namespace tributary
