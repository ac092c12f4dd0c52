#include "deploy/service/protocol/worker_messages.h"

namespace tributary::wire {

std::string_view refusal_name(Refusal refusal) noexcept {
  static constexpr std::array<std::string_view, kRefusals> kNames{
      "malformed",    "unauthorized", "unknown_sequence", "stale_epoch",
      "out_of_range", "repeated",     "corrupt",          "aborted"};
  return kNames.at(static_cast<std::size_t>(refusal));
}

std::string_view limit_name(Limit limit) noexcept {
  static constexpr std::array<std::string_view, kLimits> kNames{
      "strangers",      "places",        "unread_answers", "late_hello",
      "ended_sequence", "request_bytes", "controls",       "pulled_bytes"};
  return kNames.at(static_cast<std::size_t>(limit));
}

}  // namespace tributary::wire
