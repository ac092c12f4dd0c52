#include "core/placement/spread_policy.h"

#include <array>
#include <utility>

#include "core/base/error.h"

namespace tributary {
namespace {

constexpr std::array<std::pair<SpreadPolicy, std::string_view>, 3> kPolicies = {{
    {SpreadPolicy::kAuto, "auto"},
    {SpreadPolicy::kSingle, "single"},
    {SpreadPolicy::kAll, "all"},
}};

}  // namespace

SpreadPolicy parse_spread_policy(std::string_view name) {
  for (const auto& [policy, policy_name] : kPolicies) {
    if (name == policy_name) return policy;
  }
  fail(ErrorCode::kInvalidArgument, "spread policy '{}', expected auto, single or all", name);
}

std::string_view spread_policy_name(SpreadPolicy policy) noexcept {
  for (const auto& [known, name] : kPolicies) {
    if (policy == known) return name;
  }
  return "unknown";
}

}  // namespace tributary
