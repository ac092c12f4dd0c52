// Kernels around a product: activations into its operand, its result out.
#pragma once

#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {

inline constexpr int kParts = 3;
inline constexpr unsigned kPackThreads = 128;

/// The element of row block() and batch index block_y() of the operand; zero beyond the tokens.
TRIBUTARY_DEVICE float packed_value(const PackLaunch& p, std::int64_t col) {
  const auto row = static_cast<std::int64_t>(ptx::block());
  const auto batch = static_cast<std::int64_t>(ptx::block_y());
  if (row >= p.tokens || col >= p.width) return 0;
  return p.x[row * p.x_token_stride + batch * p.x_batch_stride + col];
}

TRIBUTARY_DEVICE void pack_float_block(const PackLaunch& p) {
  const auto batch = static_cast<std::int64_t>(ptx::block_y());
  float* to = reinterpret_cast<float*>(p.packed) +
              (batch * p.rows + static_cast<std::int64_t>(ptx::block())) * p.cols;
  for (std::int64_t c = ptx::thread(); c < p.cols; c += kPackThreads) to[c] = packed_value(p, c);
}

TRIBUTARY_DEVICE bool is_finite(bf16 value) {
  return (value.bits & 0x7f80U) != 0x7f80U;
}

/// x = hi + mid + lo, each the bf16 nearest to the remainder: 24 bits in all, as fp32 has. (Below
/// 2^-110 the last of them fall under the smallest bf16.)
TRIBUTARY_DEVICE void pack_parts_block(const PackLaunch& p) {
  const auto batch = static_cast<std::int64_t>(ptx::block_y());
  bf16* to = reinterpret_cast<bf16*>(p.packed) +
             (batch * kParts * p.rows + static_cast<std::int64_t>(ptx::block())) * p.cols;
  const std::int64_t part = p.rows * p.cols;
  for (std::int64_t c = ptx::thread(); c < p.cols; c += kPackThreads) {
    float rest = packed_value(p, c);
    for (int i = 0; i < kParts; ++i) {
      const bf16 nearest = to_bf16(rest);
      to[i * part + c] = nearest;
      // Only the first part carries infinity and NaN: infinity minus itself would be NaN.
      rest = is_finite(nearest) ? ptx::subtract(rest, to_float(nearest)) : 0.0F;
    }
  }
}

/// Block (token, batch).
TRIBUTARY_DEVICE void unpack_block(const UnpackLaunch& u) {
  const auto token = static_cast<std::int64_t>(ptx::block());
  const auto batch = static_cast<std::int64_t>(ptx::block_y());
  const float* from = u.packed + (batch * u.parts * u.rows + token) * u.cols;
  const std::int64_t part = u.rows * u.cols;
  float* y = u.y + token * u.y_token_stride + batch * u.y_batch_stride;
  for (std::int64_t c = ptx::thread(); c < u.width; c += kPackThreads) {
    float sum = from[(u.parts - 1) * part + c];
    for (int i = u.parts - 2; i >= 0; --i) sum = ptx::add(sum, from[i * part + c]);
    y[c] = sum;
  }
}

}  // namespace tributary::cuda
