// How many values a row format has no room for: who encodes rows counts them.
#pragma once

#include <cstddef>
#include <span>

#include "core/model/row_format.h"

namespace tributary {

/// The number of these values, of any rows, that RowLayout::encode() cuts to the largest that the
/// format has: beyond 448 x scale in `fp8`. Other formats cut none.
[[nodiscard]] std::size_t cut_values(const RowLayout& layout,
                                     std::span<const float> values) noexcept;

}  // namespace tributary
