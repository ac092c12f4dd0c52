// A layer's host weights as a backend takes them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/backend.h"

namespace tributary {

/// Of a part that starts at element `first` of a matrix of `cols` columns; none if there are none.
inline BlockScales scales_from(const std::vector<float>& scales, std::int64_t cols,
                               std::int64_t first) {
  if (scales.empty()) return {};
  return {.data = scales.data(), .cols = cols, .first = first};
}

/// A whole matrix [rows, cols].
inline WeightView matrix(const std::vector<float>& data, const std::vector<float>& scales,
                         std::int64_t rows, std::int64_t cols) {
  return {.data = data.data(),
          .dtype = DType::kF32,
          .rows = rows,
          .cols = cols,
          .row_stride = cols,
          .scales = scales_from(scales, cols, 0)};
}

/// The scales of two matrices of as many columns, one below the other: none unless both have some
/// and the last block of the first is whole.
inline std::vector<float> joined_scales(const std::vector<float>& first, std::int64_t first_rows,
                                        const std::vector<float>& second) {
  if (first.empty() || second.empty() || first_rows % kScaleBlock != 0) return {};
  std::vector<float> both = first;
  both.insert(both.end(), second.begin(), second.end());
  return both;
}

}  // namespace tributary
