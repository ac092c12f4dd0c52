#include "deploy/service/control/refusal_log.h"

#include <fmt/format.h>

#include <string_view>

namespace tributary {

std::string RefusalLog::update(const HttpTraffic& traffic) {
  std::string text;
  const auto add = [&](std::uint64_t now, std::uint64_t before, std::string_view what) {
    if (now > before) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", now - before, what);
  };
  add(traffic.refused, seen_.refused, "connections refused for want of room");
  add(traffic.evicted, seen_.evicted, "idle connections closed to make room");
  // Skips statuses that honest clients get: 404 and 409 concern their sequences, 429 is a full
  // tier.
  for (const int status : {400, 401, 403, 408, 413, 421, 431}) {
    const auto count_in = [&](const HttpTraffic& of) {
      const auto found = of.responses.find(status);
      return found == of.responses.end() ? 0 : found->second;
    };
    add(count_in(traffic), count_in(seen_), fmt::format("requests answered {}", status));
  }
  seen_ = traffic;
  return text;
}

}  // namespace tributary
