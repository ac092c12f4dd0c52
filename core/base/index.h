// Our signed numbers (workers, leaves) as indices of the standard library's containers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tributary {

[[nodiscard]] constexpr std::size_t at(std::int64_t number) noexcept {
  return static_cast<std::size_t>(number);
}

}  // namespace tributary
