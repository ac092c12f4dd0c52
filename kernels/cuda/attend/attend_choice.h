// The kernel of attention where it is not chosen by the shape: for a measurement, or to keep a
// service running while one kernel is broken. Includes no CUDA header.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tributary {

enum class AttendChoice : std::uint8_t {
  kAuto,     // by heads and shape
  kGeneric,  // any shape, on every device
  kFew,      // 512 + 64, bf16; sm_80 and later
  kMany1,    // 512 + 64, bf16; sm_90: units of 64 rows, each page copied by the block that reads it
  kMany2,    // the same in clusters of two blocks, which share the copies; the same bits
};
inline constexpr std::array kAttendChoices{AttendChoice::kAuto, AttendChoice::kGeneric,
                                           AttendChoice::kFew, AttendChoice::kMany1,
                                           AttendChoice::kMany2};

/// `auto`, `generic`, `few`, `many1`, `many2`; throws kInvalidArgument with the list.
[[nodiscard]] AttendChoice parse_attend_choice(std::string_view name);
[[nodiscard]] std::string_view attend_choice_name(AttendChoice choice) noexcept;

}  // namespace tributary
