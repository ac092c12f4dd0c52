// Division that rounds up: how many pages, leaves, blocks or vectors hold a number of things.
#pragma once

#include <concepts>
#include <type_traits>

namespace tributary {

/// count / per, rounded up; count >= 0, per >= 1.
template <std::integral Count, std::integral Per>
[[nodiscard]] constexpr std::common_type_t<Count, Per> ceil_div(Count count, Per per) noexcept {
  using Result = std::common_type_t<Count, Per>;
  return (static_cast<Result>(count) + static_cast<Result>(per) - 1) / static_cast<Result>(per);
}

}  // namespace tributary
