// Products of fp32 activations with FP8 weights on tiles. An e4m3 number is exact in bf16, so the
// numbers are multiplied without their scales, 64 columns at a time, with the three parts of an
// activation (amx_gemm.h). Each such sum is then multiplied by its output's scale in fp32. That is
// one rounding less than with a widened weight, and a third of the products of a weight cut into
// parts.
//
// An element's bits depend on its token's activations, the weights and the number of columns: it is
// one chain of fused multiply-adds over blocks of 64 columns in order. A part below 2^-126 counts
// as 0, which loses less than 2^-126 times the weight for each column. Before its scale a sum of 64
// products with numbers up to 448 must be finite: activations are below 2^113.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/base/ceil_div.h"
#include "kernels/cpu/amx_gemm.h"
#include "kernels/cpu/f8_code.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu::amx {

/// 32 outputs of a column of e4m3 codes, none of them NaN, as bf16.
struct F8Columns {
  static constexpr std::size_t kHalfBytes = 32;
  [[gnu::always_inline]] static Words load(const std::byte* from) {
    // Multiples of 2^-9: the values of codes without an exponent. All other codes only need their
    // exponent and mantissa moved, with another bias.
    const Words subnormals =
        _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                         0x3c60, 0x3c40, 0x3c20, 0x3c00, 0x3bc0, 0x3b80, 0x3b00, 0);
    const Words codes =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    const Words sizes = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f));
    const Words numbers =
        _mm512_add_epi16(_mm512_slli_epi16(sizes, 4), _mm512_set1_epi16(120 << 7));
    const __mmask32 small = _mm512_cmplt_epu16_mask(sizes, _mm512_set1_epi16(8));
    const Words signs = _mm512_slli_epi16(_mm512_andnot_si512(_mm512_set1_epi16(0x7f), codes), 8);
    return _mm512_or_si512(signs, _mm512_mask_permutexvar_epi16(numbers, small, sizes, subnormals));
  }
};

inline constexpr std::size_t kF8Steps = kPanelDepth / kTileDepth;
static_assert(kF8Steps <= kGemmSteps);
static_assert((kF8Steps + 1) * kPanelTiles * kTileBytes + kGemmTokens * kPanel * sizeof(float) <=
                  kGemmScratch * sizeof(float),
              "weights, a block's sums and all sums fit the scratch of products");

/// sums[kPanel] of one token, row `row` of its tiles: += the block's sums times the scales, or = if
/// it is the first block.
inline void add_scaled(const float* block, std::size_t row, const float* stored_scales, bool first,
                       float* sums) {
  alignas(kTileRowBytes) float ordered[kPanel];
  write_outputs(block, row, kPanel, ordered);
  const F32 lower = _mm512_set1_ps(1 / kF8Lift);
  for (std::size_t n = 0; n < kPanel; n += kLanes) {
    const F32 scale = _mm512_mul_ps(_mm512_load_ps(stored_scales + n), lower);
    const F32 value = _mm512_load_ps(ordered + n);
    _mm512_store_ps(sums + n, first ? _mm512_mul_ps(value, scale)
                                    : _mm512_fmadd_ps(value, scale, _mm512_load_ps(sums + n)));
  }
}

/// Panels of FP8 alone.
template <typename Tiles>
void gemm_f8(const GemmKernelArgs& args, float* scratch) {
  auto* const weights = reinterpret_cast<std::byte*>(scratch);
  auto* const block_sums = reinterpret_cast<float*>(weights + kF8Steps * kPanelTiles * kTileBytes);
  float* sums = block_sums + kPanelTiles * kTileRows * kLanes;
  const PackedActivations packed(args.tokens, args.cols);
  Tiles::configure(std::min(kTileRows, args.tokens));
  for (std::size_t k = 0; k < args.cols; k += kPanelDepth) {
    const std::size_t depth = std::min(kPanelDepth, args.cols - k);
    const std::byte* block = args.panel + panel_bytes(DType::kF8E4M3, k);
    const auto* const scales = reinterpret_cast<const float*>(block);
    interleave_weights<F8Columns>(block + kPanel * sizeof(float), depth, weights);
    const std::size_t steps = ceil_div(depth, kTileDepth);
    Ahead ahead(block, panel_bytes(DType::kF8E4M3, depth), steps);
    for (std::size_t token = 0; token < args.tokens; token += kTileRows) {
      const std::size_t tokens = std::min(kTileRows, args.tokens - token);
      add_block<Tiles>(args.packed + packed.offset(token, k / kTileDepth), packed.part_bytes(token),
                       weights, steps, true, block_sums, ahead);
      ahead = {};
      for (std::size_t row = 0; row < tokens; ++row) {
        add_scaled(block_sums, row, scales, k == 0, sums + (token + row) * kPanel);
      }
    }
  }
  Tiles::release();
  for (std::size_t token = 0; token < args.tokens; ++token) {
    std::copy_n(sums + token * kPanel, args.outputs, args.y + token * args.y_token_stride);
  }
}

template <typename Tiles>
constexpr GemmKernel f8_kernel() {
  return {.packed_bytes = packed_bytes, .pack = pack, .multiply = gemm_f8<Tiles>};
}

}  // namespace tributary::cpu::amx
TRIBUTARY_AVX512_END
