// The number of workers that a sequence may lie on, as its client or an operator chooses.
#pragma once

#include <string_view>

namespace tributary {

/// `single`: whole sequences on one worker (data parallel). `all`: every sequence on as many
/// workers as it has leaves (sequence parallel). `auto`: per sequence, the choice that makes rounds
/// short.
enum class SpreadPolicy { kAuto, kSingle, kAll };

/// `auto`, `single`, `all`; throws kInvalidArgument with the list.
[[nodiscard]] SpreadPolicy parse_spread_policy(std::string_view name);
[[nodiscard]] std::string_view spread_policy_name(SpreadPolicy policy) noexcept;

}  // namespace tributary
