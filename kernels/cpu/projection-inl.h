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
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/unpack-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// How far ahead of its use a line of a weight is requested. Hardware prefetchers stop at the ends
/// of pages and, on Zen 4, do not reach far enough for one thread to read at its full rate. On an
/// Emerald Rapids 4 to 32 KiB are alike, and without requests 16 tokens take a fifth longer.
inline constexpr std::size_t kAheadBytes = std::size_t{16} << 10;

/// Requests lines of a weight kAheadBytes further on than `from`, while a tile of kWidth columns
/// loads from the block there: 1 / kParts of a line for every line's worth of loads. A tile that is
/// narrower than the panel loads a part of each line: if it requested the lines that it meets, the
/// first tiles would ask for all at once and wait, and the others for none.
template <std::size_t kWidth, std::size_t kParts, typename Stored>
HWY_INLINE void request_ahead(const Stored* from, std::size_t k, std::size_t column) {
  constexpr std::size_t kLine = 64;
  const std::size_t loaded =
      ((column / kWidth * kPanelDepth + k) * kWidth + column % kWidth) * sizeof(Stored);
  if (loaded % (kLine * kParts) != 0) return;
  // Past the end of the panel is the next one, or nothing that a request could harm.
  prefetch_far(reinterpret_cast<const std::byte*>(from), loaded / kParts + kAheadBytes);
}

/// A block of a panel as it is stored, widened in registers. With kKeep each vector is also stored
/// to `widened`, for the rows that do not fit the first tile. It requests the first of kParts parts
/// of the lines of a block.
template <typename Stored, bool kKeep, std::size_t kParts>
struct StoredBlock {
  const Stored* HWY_RESTRICT data;
  const float* HWY_RESTRICT scales;  // of e4m3 codes, one for each output (f8_code.h)
  float* widened;

  template <std::size_t kWidth>
  [[nodiscard]] HWY_INLINE hn::Vec<F32> load(std::size_t k, std::size_t column) const {
    request_ahead<kWidth, kParts>(data, k, column);
    const Stored* from = data + k * kPanel + column;
    const F32 d;
    hn::Vec<F32> value;
    if constexpr (std::is_same_v<Stored, std::int8_t>) {
      const hn::Rebind<std::int8_t, F32> d8;
      const hn::Rebind<std::int32_t, F32> d32;
      // The sign is extended into the bits between it and the exponent, which are cleared.
      const auto places = hn::Set(d32, static_cast<std::int32_t>(0x87f00000U));
      const auto code = hn::PromoteTo(d32, hn::LoadU(d8, from));
      const auto lowered = hn::BitCast(d, hn::And(hn::ShiftLeft<20>(code), places));
      value = hn::Mul(lowered, hn::Load(d, scales + column));
    } else {
      value = load_widened(d, from);
    }
    if constexpr (kKeep) hn::Store(value, d, widened + k * kPanel + column);
    return value;
  }
};

/// The block for the rows of the second tile, which requests the second half of the lines.
template <typename Stored>
struct WidenedBlock {
  F32Block block;
  const Stored* half;  // of the block as it is stored

  template <std::size_t kWidth>
  [[nodiscard]] HWY_INLINE hn::Vec<F32> load(std::size_t k, std::size_t column) const {
    request_ahead<kWidth, 2>(half, k, column);
    return block.load<kWidth>(k, column);
  }
};

/// sums[tokens][kPanel] += x times a block of `depth` columns.
template <typename Stored>
HWY_NOINLINE void add_stored_block(
    const std::byte* stored, const float* x, std::size_t x_stride, std::size_t tokens,
    std::size_t depth,
    float* widened,  // NOLINT(readability-non-const-parameter): written, through the block
    float* sums) {
  constexpr bool kScaled = std::is_same_v<Stored, std::int8_t>;
  constexpr bool kKeep = !std::is_same_v<Stored, float>;
  const auto* const scales = reinterpret_cast<const float*>(stored);
  const auto* const data =
      reinterpret_cast<const Stored*>(stored + (kScaled ? kPanel * sizeof(float) : 0));
  if (tokens <= kTileRows) {
    const StoredBlock<Stored, false, 1> block{data, scales, nullptr};
    return panel_product<Finish::kAdd>(x, x_stride, tokens, block, depth, sums, kPanel, nullptr);
  }
  const StoredBlock<Stored, kKeep, 2> first{data, scales, widened};
  panel_rows<Finish::kAdd, kTileRows>(x, x_stride, first, depth, sums, kPanel, nullptr);
  const F32Block kept{kKeep ? first.widened : reinterpret_cast<const float*>(data)};
  const WidenedBlock<Stored> second{kept, data + kPanelDepth * kPanel / 2};
  const auto add = [&](std::size_t token, std::size_t count, const auto& block) HWY_ATTR {
    panel_product<Finish::kAdd>(x + token * x_stride, x_stride, count, block, depth,
                                sums + token * kPanel, kPanel, nullptr);
  };
  add(kTileRows, std::min(kTileRows, tokens - kTileRows), second);
  if (tokens > 2 * kTileRows) add(2 * kTileRows, tokens - 2 * kTileRows, kept);
}

/// [block of kPanelDepth columns][token][kPanelDepth]: rows of x are often a multiple of 4 KiB
/// apart, and a cache holds few such lines. Not for the rows of one tile, nor for so few panels
/// that copying x takes longer than it saves (W_UV, whose heads have two each).
inline std::size_t packed_bytes(std::size_t tokens, std::size_t cols, std::size_t panels) {
  constexpr std::size_t kFewPanels = 4;
  if (tokens <= kTileRows || panels < kFewPanels) return 0;
  return tokens * round_up(cols, kPanelDepth) * sizeof(float);
}
inline void pack(const PackKernelArgs& args) {
  const std::size_t depth = std::min(kPanelDepth, args.cols - args.column);
  float* to = reinterpret_cast<float*>(args.packed) + args.column * args.tokens;
  for (std::size_t t = 0; t < args.tokens; ++t) {
    std::copy_n(args.x + t * args.x_token_stride + args.column, depth, to + t * kPanelDepth);
  }
}

/// Weights are read in their stored type and widened in registers, never stored widened but for the
/// further rows of a block: with few tokens the product is as fast as memory delivers them.
inline void gemm(const GemmKernelArgs& args, float* scratch) {
  float* widened = scratch;
  float* sums = widened + kPanelDepth * kPanel;
  // -0 plus any sum is that sum, to the bit.
  std::fill_n(sums, args.tokens * kPanel, -0.0F);
  const bool packed = args.packed != nullptr;
  const float* x = packed ? reinterpret_cast<const float*>(args.packed) : args.x;
  const std::size_t x_stride = packed ? kPanelDepth : args.x_token_stride;
  for (std::size_t k = 0; k < args.cols; k += kPanelDepth) {
    const std::size_t depth = std::min(kPanelDepth, args.cols - k);
    const std::byte* stored = args.panel + panel_bytes(args.dtype, k);
    const auto add = args.dtype == DType::kF32    ? add_stored_block<float>
                     : args.dtype == DType::kBF16 ? add_stored_block<bf16>
                                                  : add_stored_block<std::int8_t>;
    add(stored, x + k * (packed ? args.tokens : 1), x_stride, args.tokens, depth, widened, sums);
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
