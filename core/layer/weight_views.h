// Views of a layer's host weights in the form that a backend takes.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/backend.h"

namespace tributary {

/// The scales of a part that starts at element `first` of a matrix of `cols` columns; none if the
/// matrix has none.
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

/// The shape of kv_b_proj and its parts: [heads (nope + value), latent], per head `nope` rows of
/// W_UK, then `value` rows of W_UV. `rope`: the width of the rotated values beside them, which it
/// leaves alone.
struct KvBShape {
  std::int64_t heads = 0, nope = 0, rope = 0, value = 0, latent = 0;
};

/// batch heads: [latent, nope], the transpose of kv_b_proj's rows.
inline WeightView w_uk_view(const std::vector<float>& kv_b_proj, const std::vector<float>& scales,
                            const KvBShape& shape) {
  return {.data = kv_b_proj.data(),
          .dtype = DType::kF32,
          .batch = shape.heads,
          .rows = shape.latent,
          .cols = shape.nope,
          .batch_stride = (shape.nope + shape.value) * shape.latent,
          .row_stride = 1,
          .col_stride = shape.latent,
          .scales = scales_from(scales, shape.latent, 0)};
}

/// batch heads: [value, latent].
inline WeightView w_uv_view(const std::vector<float>& kv_b_proj, const std::vector<float>& scales,
                            const KvBShape& shape) {
  const std::int64_t first = shape.nope * shape.latent;
  return {.data = kv_b_proj.data() + first,
          .dtype = DType::kF32,
          .batch = shape.heads,
          .rows = shape.value,
          .cols = shape.latent,
          .batch_stride = (shape.nope + shape.value) * shape.latent,
          .row_stride = shape.latent,
          .col_stride = 1,
          .scales = scales_from(scales, shape.latent, first)};
}

/// The scales of two matrices with the same number of columns, one below the other. Empty unless
/// both have scales and the last block of the first is whole.
inline std::vector<float> joined_scales(const std::vector<float>& first, std::int64_t first_rows,
                                        const std::vector<float>& second) {
  if (first.empty() || second.empty() || first_rows % kScaleBlock != 0) return {};
  std::vector<float> both = first;
  both.insert(both.end(), second.begin(), second.end());
  return both;
}

}  // namespace tributary
