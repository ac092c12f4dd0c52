// Whether rounds run in two halves.
#pragma once

#include <cstdint>
#include <string_view>

namespace tributary {

/// Whether the exchange of one half of a round's items goes on beside the attention of the other.
enum class Overlap : std::uint8_t {
  kNever,
  kAuto,    // where a step is predicted to gain kOverlapPays by it
  kAlways,  // whatever is predicted
};
/// Share of a step that halves have to gain before `auto` runs rounds so.
inline constexpr double kOverlapPays = 0.03;

/// `never`, `auto`, `always`; throws kInvalidArgument with the list.
[[nodiscard]] Overlap parse_overlap(std::string_view name);
[[nodiscard]] std::string_view overlap_name(Overlap overlap) noexcept;

}  // namespace tributary
