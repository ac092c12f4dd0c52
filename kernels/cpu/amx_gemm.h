// Products of fp32 activations with bf16 weights on tiles, as exact as in fp32. A tile takes only
// bf16, so an activation is cut into three parts of 8 bits, whose sum is exact, and each part is
// multiplied. Weights are read once, as they are stored; activations are cut once a call.
//
// An element's bits depend on its token's activations, the weights and the number of columns: it is
// one chain over blocks of 32 columns in order, and in each block over the first parts, the second,
// the third. A part below 2^-126 counts as 0: that loses less than 2^-126 times the weight for each
// column. All other rounding errors are those of fp32 sums (3 / 32 additions a column to the chain,
// and 16 multiply-adds in each half of a block).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/base/ceil_div.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/kernel_table.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu::amx {

inline constexpr std::size_t kParts = 3;
inline constexpr std::size_t kPanelTiles = kPanel / kLanes;
/// Products of depth 32 whose weights are interleaved together: 16 KiB of them stay in the
/// first-level cache beside the parts of 16 tokens that pass (12 KiB).
inline constexpr std::size_t kGemmSteps = 4;
inline constexpr std::size_t kGroups = ceil_div(kGemmTokens, kTileRows);
static_assert((kGemmSteps + kGroups) * kPanelTiles * kTileBytes <= kGemmScratch * sizeof(float),
              "weights and sums fit the scratch of products");

/// How the parts of up to kGemmTokens tokens' activations lie: [group of 16 tokens][step of 32
/// columns][part] of [token][32], with as many tokens as the group has. A tile has 16 rows all the
/// same: the others are what follows, and their sums are not read.
struct PackedActivations {
  std::size_t tokens = 0, steps = 0;

  PackedActivations(std::size_t its_tokens, std::size_t cols)
      : tokens(its_tokens), steps(ceil_div(cols, kTileDepth)) {}

  /// With room for the rows past the last tile.
  [[nodiscard]] std::size_t bytes() const {
    return tokens * steps * kParts * kTileRowBytes + kTileBytes;
  }
  /// Bytes of one part of a step of the group that begins at `token`.
  [[nodiscard]] std::size_t part_bytes(std::size_t token) const {
    return std::min(kTileRows, tokens - token) * kTileRowBytes;
  }
  /// Where step `step` of that group begins.
  [[nodiscard]] std::size_t offset(std::size_t token, std::size_t step) const {
    return token * steps * kParts * kTileRowBytes + step * kParts * part_bytes(token);
  }
};

/// 32 outputs of a column of bf16.
struct Bf16Columns {
  static constexpr std::size_t kHalfBytes = kTileRowBytes;
  [[gnu::always_inline]] static Words load(const std::byte* from) {
    return _mm512_loadu_si512(from);
  }
};

/// `depth` columns of a panel, up to kGemmSteps x 32, as tiles of B: [step][4 tiles of outputs].
/// Outputs are permuted within 32, and put in order at the end (order_columns).
template <typename Columns>
void interleave_weights(const std::byte* panel, std::size_t depth, std::byte* to) {
  constexpr std::size_t kColumnBytes = kPanel / kTileDepth * Columns::kHalfBytes;
  for (std::size_t k = 0; k < round_up(depth, kTileDepth); k += 2) {
    std::byte* pair =
        to + k / kTileDepth * kPanelTiles * kTileBytes + k % kTileDepth / 2 * kTileRowBytes;
    for (std::size_t half = 0; half < kPanelTiles / 2; ++half) {
      const std::byte* from = panel + k * kColumnBytes + half * Columns::kHalfBytes;
      const Words none = _mm512_setzero_si512();
      const Words first = k < depth ? Columns::load(from) : none;
      const Words second = k + 1 < depth ? Columns::load(from + kColumnBytes) : none;
      std::byte* tile = pair + 2 * half * kTileBytes;
      _mm512_store_si512(tile, _mm512_unpacklo_epi16(first, second));
      _mm512_store_si512(tile + kTileBytes, _mm512_unpackhi_epi16(first, second));
    }
  }
}

/// The rest of x below its upper half, exactly. An infinity leaves nothing.
[[gnu::always_inline]] inline F32 below_upper_half(F32 x) {
  const F32 upper = _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(static_cast<int>(0xffff0000))));
  const __mmask16 finite = _mm512_cmp_ps_mask(
      _mm512_abs_ps(x), _mm512_set1_ps(std::numeric_limits<float>::infinity()), _CMP_NEQ_UQ);
  return _mm512_maskz_sub_ps(finite, x, upper);
}

/// Cuts `count` columns of a token, up to 32, into parts `part_bytes` apart. Missing columns are
/// zeros.
inline void split_columns(const float* from, std::size_t count, std::byte* to,
                          std::size_t part_bytes) {
  // The upper halves of two vectors' words, in order.
  const Words halves =
      _mm512_set_epi16(63, 61, 59, 57, 55, 53, 51, 49, 47, 45, 43, 41, 39, 37, 35, 33, 31, 29, 27,
                       25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  const auto mask = static_cast<std::uint32_t>((std::uint64_t{1} << count) - 1);
  F32 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), from);
  F32 high = count > kLanes
                 ? _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> kLanes), from + kLanes)
                 : _mm512_setzero_ps();
  for (std::size_t part = 0; part < kParts; ++part) {
    _mm512_store_si512(
        to + part * part_bytes,
        _mm512_permutex2var_epi16(_mm512_castps_si512(low), halves, _mm512_castps_si512(high)));
    low = below_upper_half(low);
    high = below_upper_half(high);
  }
}

inline std::size_t packed_bytes(std::size_t tokens, std::size_t cols, std::size_t /*panels*/) {
  return PackedActivations(tokens, cols).bytes();
}
inline void pack(const PackKernelArgs& args) {
  const PackedActivations packed(args.tokens, args.cols);
  const std::size_t end = std::min(args.cols, args.column + kPanelDepth);
  for (std::size_t token = 0; token < args.tokens; ++token) {
    const std::size_t row = token % kTileRows;
    const std::size_t group = token - row;
    for (std::size_t k = args.column; k < end; k += kTileDepth) {
      split_columns(args.x + token * args.x_token_stride + k, std::min(kTileDepth, end - k),
                    args.packed + packed.offset(group, k / kTileDepth) + row * kTileRowBytes,
                    packed.part_bytes(group));
    }
  }
  if (end == args.cols) std::memset(args.packed + packed.bytes() - kTileBytes, 0, kTileBytes);
}

/// Lines of the panel that are requested between products, some after each tile of outputs: the
/// panel's lines come while tiles multiply, and not only while weights are interleaved. Past the
/// panel lies the next one, which the same thread reads next.
class Ahead {
 public:
  /// For a block of `bytes` at `block`, which `steps` steps multiply; of nothing by default.
  Ahead() = default;
  Ahead(const std::byte* block, std::size_t bytes, std::size_t steps)
      : next_(reinterpret_cast<const char*>(block) + kBytes),
        lines_(ceil_div(bytes, kLine * kPanelTiles * steps)) {}

  [[gnu::always_inline]] void request() {
    for (std::size_t i = 0; i < lines_; ++i, next_ += kLine) _mm_prefetch(next_, _MM_HINT_T1);
  }

 private:
  static constexpr std::size_t kLine = 64;
  // 16 KiB are 20% slower where a token or four are multiplied.
  static constexpr std::size_t kBytes = std::size_t{32} << 10;

  const char* next_ = nullptr;
  std::size_t lines_ = 0;
};

/// One part x one tile of outputs after the other: three products for one tile of weights.
template <typename Tiles, int kOutputs>
[[gnu::always_inline]] inline void add_outputs(const std::byte* weights) {
  Tiles::template load<7>(weights + kOutputs * kTileBytes, kTileRowBytes);
  Tiles::template add_dot<kOutputs, 4, 7>();
  Tiles::template add_dot<kOutputs, 5, 7>();
  Tiles::template add_dot<kOutputs, 6, 7>();
}

/// Adds `steps` blocks of 32 columns to the sums of up to 16 tokens, [4 tiles of outputs].
template <typename Tiles>
void add_block(const std::byte* activations, std::size_t part_bytes, const std::byte* weights,
               std::size_t steps, bool first, float* sums, Ahead ahead) {
  Tiles::fence();
  take_sums<Tiles, 0, 4>(sums, first);
  for (std::size_t step = 0; step < steps; ++step) {
    Tiles::template load<4>(activations, kTileRowBytes);
    Tiles::template load<5>(activations + part_bytes, kTileRowBytes);
    Tiles::template load<6>(activations + 2 * part_bytes, kTileRowBytes);
    add_outputs<Tiles, 0>(weights);
    ahead.request();
    add_outputs<Tiles, 1>(weights);
    ahead.request();
    add_outputs<Tiles, 2>(weights);
    ahead.request();
    add_outputs<Tiles, 3>(weights);
    ahead.request();
    activations += kParts * part_bytes;
    weights += kPanelTiles * kTileBytes;
  }
  store_sums<Tiles, 0, 4>(sums);
  Tiles::fence();
}

/// Sums of one token, row `row` of its tiles, to y[outputs].
inline void write_outputs(const float* sums, std::size_t row, std::size_t outputs, float* y) {
  alignas(kTileRowBytes) float ordered[kPanel];
  for (std::size_t tile = 0; tile < kPanelTiles; tile += 2) {
    const float* from = sums + (tile * kTileRows + row) * kLanes;
    F32 first;   // NOLINT(cppcoreguidelines-init-variables): both filled by the next line
    F32 second;  // NOLINT(cppcoreguidelines-init-variables)
    order_columns(_mm512_load_ps(from), _mm512_load_ps(from + kTileRows * kLanes), &first, &second);
    _mm512_store_ps(ordered + tile * kLanes, first);
    _mm512_store_ps(ordered + (tile + 1) * kLanes, second);
  }
  std::copy_n(ordered, outputs, y);
}

/// Panels of bf16 alone.
template <typename Tiles>
void gemm(const GemmKernelArgs& args, float* scratch) {
  constexpr std::size_t kDepth = kGemmSteps * kTileDepth;
  constexpr std::size_t kGroupFloats = kPanelTiles * kTileRows * kLanes;
  auto* const weights = reinterpret_cast<std::byte*>(scratch);
  auto* const sums = reinterpret_cast<float*>(weights + kGemmSteps * kPanelTiles * kTileBytes);
  const PackedActivations packed(args.tokens, args.cols);
  Tiles::configure(std::min(kTileRows, args.tokens));
  for (std::size_t k = 0; k < args.cols; k += kDepth) {
    const std::size_t depth = std::min(kDepth, args.cols - k);
    const std::size_t steps = ceil_div(depth, kTileDepth);
    const std::byte* block = args.panel + k * kPanel * sizeof(bf16);
    interleave_weights<Bf16Columns>(block, depth, weights);
    Ahead ahead(block, depth * kPanel * sizeof(bf16), steps);
    for (std::size_t token = 0; token < args.tokens; token += kTileRows) {
      add_block<Tiles>(args.packed + packed.offset(token, k / kTileDepth), packed.part_bytes(token),
                       weights, steps, k == 0, sums + token / kTileRows * kGroupFloats, ahead);
      ahead = {};
    }
  }
  Tiles::release();
  for (std::size_t token = 0; token < args.tokens; ++token) {
    write_outputs(sums + token / kTileRows * kGroupFloats, token % kTileRows, args.outputs,
                  args.y + token * args.y_token_stride);
  }
}

template <typename Tiles>
constexpr GemmKernel bf16_kernel() {
  return {.packed_bytes = packed_bytes, .pack = pack, .multiply = gemm<Tiles>};
}

}  // namespace tributary::cpu::amx
TRIBUTARY_AVX512_END
