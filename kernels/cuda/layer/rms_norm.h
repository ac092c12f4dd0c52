// Kernel of RmsNormArgs.
#pragma once

#include <bit>

#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {

inline constexpr unsigned kNormThreads = 256;
inline constexpr std::uint32_t kNormSharedBytes = kNormThreads * sizeof(ptx::Chunk);

/// Stores a double in shared memory.
TRIBUTARY_DEVICE void store_double(std::uint32_t shared, unsigned place, double value) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  ptx::store_shared(
      shared + place * static_cast<std::uint32_t>(sizeof(ptx::Chunk)),
      ptx::Chunk{{static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32), 0, 0}});
}
TRIBUTARY_DEVICE double load_double(std::uint32_t shared, unsigned place) {
  const ptx::Chunk chunk =
      ptx::load_shared_chunk(shared + place * static_cast<std::uint32_t>(sizeof(ptx::Chunk)));
  return std::bit_cast<double>(chunk.words[0] | static_cast<std::uint64_t>(chunk.words[1]) << 32);
}

/// One block a token. The sum is in float64: at these widths it costs nothing, and the result is
/// rounded once, whatever the width. y may be x: every element is read by the thread that writes
/// it, after all were summed.
TRIBUTARY_DEVICE void rms_norm_block(const RmsNormArgs& n) {
  const std::uint32_t sums = ptx::shared_memory();
  const unsigned thread = ptx::thread();
  const float* x = n.x + static_cast<std::int64_t>(ptx::block()) * n.x_token_stride;
  float* y = n.y + static_cast<std::int64_t>(ptx::block()) * n.y_token_stride;
  double sum = 0;
  for (std::int64_t i = thread; i < n.width; i += kNormThreads) {
    sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  store_double(sums, thread, sum);
  ptx::sync_block();
  for (unsigned half = kNormThreads / 2; half > 0; half /= 2) {
    if (thread < half) {
      store_double(sums, thread, load_double(sums, thread) + load_double(sums, thread + half));
    }
    ptx::sync_block();
  }
  const double mean = load_double(sums, 0) / static_cast<double>(n.width);
  const double scale = 1 / sqrt(mean + static_cast<double>(n.eps));
  for (std::int64_t i = thread; i < n.width; i += kNormThreads) {
    y[i] = static_cast<float>(static_cast<double>(x[i]) * scale * static_cast<double>(n.weight[i]));
  }
}

}  // namespace tributary::cuda
