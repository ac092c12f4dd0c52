// The only matrix product of the CPU backend: rows of A times a packed panel. Scores, weighted
// values and projections all use it.

#if defined(TRIBUTARY_KERNELS_CPU_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_KERNELS_CPU_PANEL_INL_H_
#undef TRIBUTARY_KERNELS_CPU_PANEL_INL_H_
#else
#define TRIBUTARY_KERNELS_CPU_PANEL_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/kernel_table.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;

// Register tile of kTileRows rows x kTileVectors vectors. AVX-512 has 32 registers: 24 sums, 4
// vectors of B, one broadcast of A, and one row of the tile is a whole panel. The others have 16:
// 12 sums, 2 vectors of B, one of A. Either way a step of the depth does 24 (12) multiply-adds for
// 10 (8) loads, so that loads hide behind arithmetic on machines with two of each per cycle. One or
// two rows take more vectors there: 8 sums are what two multiply-adds a cycle of latency 4 need.
inline constexpr std::size_t kTileRows = 6;
#if HWY_TARGET <= HWY_AVX3
template <std::size_t kRows>
inline constexpr std::size_t kTileVectors = 4;
#else
template <std::size_t kRows>
inline constexpr std::size_t kTileVectors = kRows <= 2 ? 8 / kRows : 2;
#endif

/// Prefetches every line of [data, data + bytes).
HWY_INLINE void prefetch(const std::byte* data, std::size_t bytes) {
  constexpr std::size_t kLine = 64;
  for (std::size_t at = 0; at < bytes; at += kLine) hwy::Prefetch(data + at);
}

/// Requests the line `ahead` bytes after `data` into the second-level cache.
HWY_INLINE void prefetch_far(const std::byte* data, std::size_t ahead) {
  // An address, never read: it may lie past the end of the memory that `data` is a part of.
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(data) + ahead),
                     0, 2);
}

/// The use of the products of a block: C = AB, C += AB, or C[r] = C[r] * scale[r] + AB.
enum class Finish { kStore, kAdd, kScaleAdd };

/// B as a tile reads it: a block of a packed panel in fp32. Others widen what they load, and know
/// from the width of the tile when it is loaded.
struct F32Block {
  const float* HWY_RESTRICT data;

  template <std::size_t kWidth>
  [[nodiscard]] HWY_INLINE hn::Vec<F32> load(std::size_t k, std::size_t column) const {
    return hn::Load(F32(), data + k * kPanel + column);
  }
};

/// kRows rows against the vectors of B from `column` on.
template <Finish kFinish, std::size_t kRows, class Block>
HWY_INLINE void panel_tile(const float* HWY_RESTRICT a, std::size_t a_stride, const Block& b,
                           std::size_t column, std::size_t depth, float* HWY_RESTRICT c,
                           std::size_t c_stride, const float* HWY_RESTRICT scale) {
  const F32 d;
  constexpr std::size_t kLanes = hn::MaxLanes(F32());
  constexpr std::size_t kVectors = kTileVectors<kRows>;
  constexpr std::size_t kWidth = kVectors * kLanes;
  using V = hn::Vec<F32>;
  V sums[kRows][kVectors];
  for (auto& row : sums) {
    for (V& sum : row) sum = hn::Zero(d);
  }
  for (std::size_t k = 0; k < depth; ++k) {
    // Whichever is fewer waits in registers: values of A, or vectors of B.
    if constexpr (kRows <= 2) {
      V values[kRows];
      for (std::size_t r = 0; r < kRows; ++r) values[r] = hn::Set(d, a[r * a_stride + k]);
      for (std::size_t v = 0; v < kVectors; ++v) {
        const V panel = b.template load<kWidth>(k, column + v * kLanes);
        for (std::size_t r = 0; r < kRows; ++r) {
          sums[r][v] = hn::MulAdd(values[r], panel, sums[r][v]);
        }
      }
    } else {
      V panel[kVectors];
      for (std::size_t v = 0; v < kVectors; ++v) {
        panel[v] = b.template load<kWidth>(k, column + v * kLanes);
      }
      for (std::size_t r = 0; r < kRows; ++r) {
        const V value = hn::Set(d, a[r * a_stride + k]);
        for (std::size_t v = 0; v < kVectors; ++v) {
          sums[r][v] = hn::MulAdd(value, panel[v], sums[r][v]);
        }
      }
    }
  }
  for (std::size_t r = 0; r < kRows; ++r) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      float* out = c + r * c_stride + column + v * kLanes;
      V result = sums[r][v];
      if constexpr (kFinish == Finish::kAdd) result = hn::Add(hn::Load(d, out), result);
      if constexpr (kFinish == Finish::kScaleAdd) {
        result = hn::MulAdd(hn::Load(d, out), hn::Set(d, scale[r]), result);
      }
      hn::Store(result, d, out);
    }
  }
}

/// kRows rows against a whole panel.
template <Finish kFinish, std::size_t kRows, class Block>
HWY_INLINE void panel_rows(const float* a, std::size_t a_stride, const Block& b, std::size_t depth,
                           float* c, std::size_t c_stride, const float* scale) {
  constexpr std::size_t kTileWidth = kTileVectors<kRows> * hn::MaxLanes(F32());
  static_assert(kPanel % kTileWidth == 0);
  for (std::size_t column = 0; column < kPanel; column += kTileWidth) {
    panel_tile<kFinish, kRows>(a, a_stride, b, column, depth, c, c_stride, scale);
  }
}

/// C[rows][kPanel] from A[rows][depth] and B[depth][kPanel]; `scale` is read by kScaleAdd alone.
/// B and C are aligned to a cache line, c_stride is a multiple of kPanel. Every element of C is one
/// chain of multiply-adds over k from 0 up, whichever tile computes it.
template <Finish kFinish, class Block>
HWY_NOINLINE void panel_product(const float* a, std::size_t a_stride, std::size_t rows,
                                const Block& b, std::size_t depth, float* c, std::size_t c_stride,
                                const float* scale) {
  std::size_t r = 0;
  for (; r + kTileRows <= rows; r += kTileRows) {
    panel_rows<kFinish, kTileRows>(a + r * a_stride, a_stride, b, depth, c + r * c_stride, c_stride,
                                   scale);
    if constexpr (kFinish == Finish::kScaleAdd) scale += kTileRows;
  }
  a += r * a_stride;
  c += r * c_stride;
  switch (rows - r) {
    case 5:
      return panel_rows<kFinish, 5>(a, a_stride, b, depth, c, c_stride, scale);
    case 4:
      return panel_rows<kFinish, 4>(a, a_stride, b, depth, c, c_stride, scale);
    case 3:
      return panel_rows<kFinish, 3>(a, a_stride, b, depth, c, c_stride, scale);
    case 2:
      return panel_rows<kFinish, 2>(a, a_stride, b, depth, c, c_stride, scale);
    case 1:
      return panel_rows<kFinish, 1>(a, a_stride, b, depth, c, c_stride, scale);
    default:
      return;
  }
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NOLINT(llvm-header-guard)
