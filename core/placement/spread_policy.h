// On how many workers a sequence may lie, as its client or an operator says it.
#pragma once

#include <string_view>

namespace tributary {

/// `single`: whole sequences on one worker (data parallel). `all`: every sequence on as many
/// workers as it has leaves (sequence parallel). `auto`: per sequence, what makes rounds short.
enum class SpreadPolicy { kAuto, kSingle, kAll };

/// `auto`, `single`, `all`; throws kInvalidArgument with the list.
[[nodiscard]] SpreadPolicy parse_spread_policy(std::string_view name);
[[nodiscard]] std::string_view spread_policy_name(SpreadPolicy policy) noexcept;

}  // namespace tributary
