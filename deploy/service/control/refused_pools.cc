#include "deploy/service/control/refused_pools.h"

#include <fmt/format.h>

namespace tributary {
namespace {

constexpr std::chrono::minutes kPeriod{1};
constexpr std::size_t kMaxKnown = 64;

}  // namespace

std::string RefusedPools::note(const std::string& remote, const std::string& why, Time now) {
  // Each try has a port of its own.
  const std::string key = remote.substr(0, remote.rfind(':')) + ' ' + why;
  if (known_.size() >= kMaxKnown && !known_.contains(key)) known_.clear();
  const auto [entry, is_new] = known_.try_emplace(key, Refusals{.logged = now});
  Refusals& known = entry->second;
  if (!is_new && now - known.logged < kPeriod) {
    ++known.silent;
    return {};
  }
  const int silent = known.silent;
  known = {.logged = now};
  return fmt::format("a pool at {} was refused: {}{}", remote, why,
                     silent == 0 ? "" : fmt::format(" ({} more times since)", silent));
}

}  // namespace tributary
