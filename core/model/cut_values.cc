#include "core/model/cut_values.h"

#include <algorithm>
#include <cmath>

#include "core/base/dtype.h"

namespace tributary {

std::size_t cut_values(const RowLayout& layout, std::span<const float> values) noexcept {
  if (layout.format.id != RowFormat::kFp8.id) return 0;
  constexpr float kLargestCode = 448;  // of e4m3
  return static_cast<std::size_t>(std::ranges::count_if(values, [&](float value) {
    return std::abs(round_to_bf16(value) / layout.format.scale) > kLargestCode;
  }));
}

}  // namespace tributary
