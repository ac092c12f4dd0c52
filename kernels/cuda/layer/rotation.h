// Kernel of RopeArgs.
#pragma once

#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {

inline constexpr unsigned kRopeThreads = 128;
/// Pairs whose angles a block holds at once: those of a rope width of 64, which all models have.
/// Larger widths take several turns.
inline constexpr unsigned kRopePairs = 32;
inline constexpr std::uint32_t kRopeSharedBytes = 2 * kRopePairs * sizeof(float);

/// One block per token, of `threads` >= kRopePairs: computes the angles once, in float64, then
/// rotates all heads.
TRIBUTARY_DEVICE void rope_block(const RopeLaunch& r, unsigned threads = kRopeThreads) {
  const std::uint32_t cosines = ptx::shared_memory();
  const std::uint32_t sines = cosines + kRopePairs * static_cast<std::uint32_t>(sizeof(float));
  const auto token = static_cast<std::int64_t>(ptx::block());
  const auto position = static_cast<double>(r.positions[token]);
  for (std::int64_t first = 0; first < r.pairs; first += kRopePairs) {
    const std::int64_t count = r.pairs - first < kRopePairs ? r.pairs - first : kRopePairs;
    if (ptx::thread() < count) {
      const double angle = position * r.frequencies[first + ptx::thread()];
      const std::uint32_t at = ptx::thread() * static_cast<std::uint32_t>(sizeof(float));
      ptx::store_shared(cosines + at, static_cast<float>(cos(angle)));
      ptx::store_shared(sines + at, static_cast<float>(sin(angle)));
    }
    ptx::sync_block();
    for (std::int64_t i = ptx::thread(); i < r.heads * count; i += threads) {
      const std::int64_t head = i / count;
      const std::int64_t pair = i % count;
      const auto at = static_cast<std::uint32_t>(pair * static_cast<std::int64_t>(sizeof(float)));
      const float cosine = ptx::load_shared(cosines + at);
      const float sine = ptx::load_shared(sines + at);
      const float* x = r.x + token * r.x_token_stride + head * r.x_head_stride + 2 * (first + pair);
      float* y = r.y + token * r.y_token_stride + head * r.y_head_stride + 2 * (first + pair);
      const float even = x[0];
      const float odd = x[1];
      y[0] = ptx::subtract(ptx::multiply(even, cosine), ptx::multiply(odd, sine));
      y[1] = ptx::add(ptx::multiply(even, sine), ptx::multiply(odd, cosine));
    }
    ptx::sync_block();
  }
}

}  // namespace tributary::cuda
