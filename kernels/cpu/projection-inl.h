// Projections and norms: products with packed weights, RMSNorm, RoPE.

#if defined(TRIBUTARY_KERNELS_CPU_PROJECTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_KERNELS_CPU_PROJECTION_INL_H_
#undef TRIBUTARY_KERNELS_CPU_PROJECTION_INL_H_
#else
#define TRIBUTARY_KERNELS_CPU_PROJECTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/unpack-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A block of an FP8 panel, `depth` columns: codes times their outputs' scales.
HWY_INLINE void widen_f8_block(const std::byte* block, std::size_t depth, float* to) {
  const F32 d;
  const hn::Rebind<std::int8_t, F32> d8;
  const hn::Rebind<std::int32_t, F32> d32;
  const auto* const scales = reinterpret_cast<const float*>(block);
  const auto* const codes = reinterpret_cast<const std::int8_t*>(scales + kPanel);
  // The sign is extended into the bits between it and the exponent, which are cleared.
  const auto places = hn::Set(d32, static_cast<std::int32_t>(0x87f00000U));
  for (std::size_t v = 0; v < kPanel; v += hn::Lanes(d)) {
    const auto scale = hn::Load(d, scales + v);
    for (std::size_t k = 0; k < depth; ++k) {
      const auto code = hn::PromoteTo(d32, hn::LoadU(d8, codes + k * kPanel + v));
      const auto lowered = hn::BitCast(d, hn::And(hn::ShiftLeft<20>(code), places));
      hn::Store(hn::Mul(lowered, scale), d, to + k * kPanel + v);
    }
  }
}

/// Weights are read in their stored type and widened one block at a time, never stored widened:
/// with few tokens the product is as fast as memory delivers them.
inline void gemm(const GemmKernelArgs& args, float* scratch) {
  float* widened = scratch;
  float* sums = widened + kPanelDepth * kPanel;
  float* packed = sums + kGemmTokens * kPanel;
  for (std::size_t k = 0; k < args.cols; k += kPanelDepth) {
    const std::size_t depth = std::min(kPanelDepth, args.cols - k);
    const std::byte* stored = args.panel + panel_bytes(args.dtype, k);
    const float* block = widened;
    if (args.dtype == DType::kF32) {
      block = reinterpret_cast<const float*>(stored);
    } else if (args.dtype == DType::kBF16) {
      widen_row(reinterpret_cast<const bf16*>(stored), depth * kPanel, widened);
    } else {
      widen_f8_block(stored, depth, widened);
    }
    // Rows of x are often a multiple of 4 KiB apart, and a cache holds few such lines: many rows
    // are copied together first.
    const float* x = args.x + k;
    std::size_t x_stride = args.x_token_stride;
    if (args.tokens > kTileRows) {
      // The next block is prefetched during this block's product. With fewer tokens there is too
      // little arithmetic to hide it, and prefetching disturbs the hardware's own streams.
      const std::size_t next = std::min(args.cols, k + kPanelDepth);
      prefetch(args.panel + panel_bytes(args.dtype, next),
               panel_bytes(args.dtype, std::min(kPanelDepth, args.cols - next)));
      for (std::size_t t = 0; t < args.tokens; ++t) {
        std::copy_n(x + t * x_stride, depth, packed + t * kPanelDepth);
      }
      x = packed;
      x_stride = kPanelDepth;
    }
    if (k == 0) {
      panel_product<Finish::kStore>(x, x_stride, args.tokens, block, depth, sums, kPanel, nullptr);
    } else {
      panel_product<Finish::kAdd>(x, x_stride, args.tokens, block, depth, sums, kPanel, nullptr);
    }
  }
  for (std::size_t t = 0; t < args.tokens; ++t) {
    std::copy_n(sums + t * kPanel, args.outputs, args.y + t * args.y_token_stride);
  }
}

/// Squares are summed in double, so that the width does not matter.
inline void rms_norm(const float* x, const float* weight, float eps, std::size_t width, float* y) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> half;
  auto squares = hn::Zero(dd);
  std::size_t i = 0;
  for (; i + hn::Lanes(dd) <= width; i += hn::Lanes(dd)) {
    const auto value = hn::PromoteTo(dd, hn::LoadU(half, x + i));
    squares = hn::MulAdd(value, value, squares);
  }
  double sum = sum_of_lanes(dd, squares);
  for (; i < width; ++i) sum += static_cast<double>(x[i]) * x[i];
  const auto scale = static_cast<float>(1.0 / std::sqrt(sum / static_cast<double>(width) + eps));
  const F32 d;
  const auto scale_v = hn::Set(d, scale);
  for (i = 0; i + hn::Lanes(d) <= width; i += hn::Lanes(d)) {
    const auto value = hn::Mul(hn::LoadU(d, x + i), scale_v);
    hn::StoreU(hn::Mul(value, hn::LoadU(d, weight + i)), d, y + i);
  }
  for (; i < width; ++i) y[i] = x[i] * scale * weight[i];
}

/// Works on pairs as they are stored: two products and a sum per vector, without a fused
/// multiply-add, so that the bits are those of plain double arithmetic.
HWY_INLINE void rotate_head(const float* x, const double* cosines, const double* sines,
                            std::size_t width, float* y) {
  std::size_t i = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> half;
  for (; i + hn::Lanes(dd) <= width; i += hn::Lanes(dd)) {
    const auto value = hn::PromoteTo(dd, hn::LoadU(half, x + i));
    const auto sum = hn::Add(hn::Mul(value, hn::LoadU(dd, cosines + i)),
                             hn::Mul(hn::Shuffle01(value), hn::LoadU(dd, sines + i)));
    hn::StoreU(hn::DemoteTo(half, sum), half, y + i);
  }
#endif
  for (; i < width; i += 2) {
    const double even = x[i];
    const double odd = x[i + 1];
    y[i] = static_cast<float>(even * cosines[i] + odd * sines[i]);
    y[i + 1] = static_cast<float>(odd * cosines[i + 1] + even * sines[i + 1]);
  }
}

inline void rotate(const RotateKernelArgs& args) {
  // A head's rotated part is a few lines between others, which no hardware prefetcher follows.
  // Those of later heads are requested while one is computed.
  constexpr std::size_t kAhead = 8;
  const std::size_t bytes = args.width * sizeof(float);
  for (std::size_t head = 0; head < args.heads; ++head) {
    const float* x = args.x + head * args.x_head_stride;
    float* y = args.y + head * args.y_head_stride;
    if (head + kAhead < args.heads) {
      prefetch(reinterpret_cast<const std::byte*>(x + kAhead * args.x_head_stride), bytes);
      prefetch(reinterpret_cast<const std::byte*>(y + kAhead * args.y_head_stride), bytes);
    }
    rotate_head(x, args.cosines, args.sines, args.width, y);
  }
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NOLINT(llvm-header-guard)
