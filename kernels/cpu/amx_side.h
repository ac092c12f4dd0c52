// The vector units' work while tiles multiply, in steps small enough to go between two products:
// the rows of a block are interleaved in pairs, and scores are made into weights. A loop of tile
// products calls step() once per product of 32 columns; drain() does the rest.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/base/ceil_div.h"
#include "kernels/cpu/amx_unit.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu::amx {

/// Nothing.
struct Idle {
  void step() {}
};

/// Values of up to 64 rows of a page as tiles of B: pairs of rows, interleaved, 32 columns at a
/// time. Columns are permuted within 32, and are put in order when the states are written
/// (order_columns). Rows past the last are zeros.
class Interleave {
 public:
  /// `to`: the tiles of the first 32 rows. `steps`: how often step() will be called.
  Interleave(const Unit& unit, const std::byte* rows, std::size_t count, std::byte* to,
             std::size_t steps)
      : unit_(unit), rows_(rows), count_(count), to_(to), vectors_(unit.columns / 2) {
    pairs_ = ceil_div(count, kTileDepth) * kTileRows;
    per_step_ = ceil_div(pairs_ * vectors_, steps);
    take_pair();
  }

  [[gnu::always_inline]] void step() {
    for (std::size_t i = 0; i < per_step_ && pair_ < pairs_; ++i) {
      const Words first = _mm512_loadu_si512(first_ + vector_ * kTileRowBytes);
      const Words second = _mm512_loadu_si512(second_ + vector_ * kTileRowBytes);
      std::byte* to = pair_to_ + 2 * vector_ * kTileBytes;
      _mm512_store_si512(to, _mm512_unpacklo_epi16(first, second));
      _mm512_store_si512(to + kTileBytes, _mm512_unpackhi_epi16(first, second));
      if (++vector_ == vectors_) {
        vector_ = 0;
        ++pair_;
        take_pair();
      }
    }
  }
  void drain() {
    while (pair_ < pairs_) step();
  }

 private:
  void take_pair() {
    const auto row = [this](std::size_t index) {
      return index < count_ ? rows_ + index * unit_.row_bytes() : unit_.zeros;
    };
    first_ = row(2 * pair_);
    second_ = row(2 * pair_ + 1);
    pair_to_ =
        to_ + pair_ / kTileRows * unit_.columns * kTileBytes + pair_ % kTileRows * kTileRowBytes;
  }

  const Unit& unit_;
  const std::byte* rows_;
  std::size_t count_;
  std::byte* to_;
  std::size_t vectors_;  // of 32 columns
  std::size_t pairs_ = 0, per_step_ = 0;
  std::size_t pair_ = 0, vector_ = 0;
  const std::byte* first_ = nullptr;
  const std::byte* second_ = nullptr;
  std::byte* pair_to_ = nullptr;
};

/// 2^x, within 2 ulp, for x <= about 1; exactly 1 at 0, exactly 0 below -126 and at -inf. NaN gives
/// NaN. The polynomial is (2^r - 1) / r at the Chebyshev nodes of |r| <= 1/2, off by 5e-9.
[[gnu::always_inline]] inline F32 exp2_not_positive(F32 x) {
  const F32 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const F32 r = _mm512_sub_ps(x, n);
  F32 p = _mm512_set1_ps(1.5453163e-4F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.3390863e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6180826e-3F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5503571e-2F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314719e-1F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0F));
  const __mmask16 normal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(normal, p, n);
}

/// Scores of a block become weights 2^(score - maximum), rounded to bf16, as tiles of A; maxima,
/// sums (of the weights before rounding) and rescale factors follow. Lanes are query rows.
template <typename Tiles>
class Weigh {
 public:
  Weigh(const Unit& unit, std::size_t begin, std::size_t count, std::byte* weights)
      : unit_(unit),
        begin_(begin),
        count_(count),
        weights_(weights),
        scale_(unit.args->softmax_scale * 1.44269504F) {
    next_tile(0);
  }

  [[gnu::always_inline]] void step() {
    if (tile_ == unit_.tiles) return;
    if (stage_ < max_stages_) {
      take_maximum();
    } else if (part_ < kParts) {
      weigh_rows();
    } else {
      store_step();
    }
  }
  void drain() {
    while (tile_ < unit_.tiles) step();
  }

 private:
  static constexpr std::size_t kMaxRows = 64;  // of a stage of the maximum
  static constexpr std::size_t kPartRows = 8;  // of a part of the weights of 32 rows
  static constexpr std::size_t kParts = kTileDepth / kPartRows;

  /// The first tile from `tile` on that sees any of the block.
  void next_tile(std::size_t tile) {
    for (tile_ = tile; tile_ < unit_.tiles; ++tile_) {
      seen_ = unit_.seen(tile_, begin_, count_);
      if (seen_ > 0) break;
    }
    stage_ = 0;
    max_stages_ = ceil_div(seen_, kMaxRows);
    step_ = 0;
    part_ = 0;
    max_ = _mm512_set1_ps(kMinusInfinity);
  }

  [[gnu::always_inline]] void take_maximum() {
    const std::size_t first = stage_ * kMaxRows;
    const std::size_t rows = std::min(kMaxRows, seen_ - first);
    const float* scores = unit_.scores_of(tile_, first);
    // max(score, m) keeps m if the score is NaN: the order of rows does not matter.
    F32 max[4] = {max_, max_, max_, max_};
    std::size_t row = 0;
    for (; row + 4 <= rows; row += 4) {
      for (std::size_t i = 0; i < 4; ++i) {
        max[i] = _mm512_max_ps(_mm512_load_ps(scores + (row + i) * kLanes), max[i]);
      }
    }
    for (; row < rows; ++row) max[0] = _mm512_max_ps(_mm512_load_ps(scores + row * kLanes), max[0]);
    max_ = _mm512_max_ps(_mm512_max_ps(max[0], max[1]), _mm512_max_ps(max[2], max[3]));
    if (++stage_ == max_stages_) begin_weights();
  }

  /// Rounding keeps order: the largest score is the scaled largest product.
  void begin_weights() {
    const std::size_t at = tile_ * kLanes;
    max_ = _mm512_mul_ps(max_, _mm512_set1_ps(scale_));
    sum_ = _mm512_setzero_ps();
    if (begin_ > 0) {
      const F32 before = _mm512_load_ps(unit_.max + at);
      max_ = _mm512_max_ps(before, max_);
      const F32 rescale = exp2_not_positive(_mm512_sub_ps(before, max_));
      sum_ = _mm512_mul_ps(_mm512_load_ps(unit_.sum + at), rescale);
      _mm512_store_ps(unit_.rescale + at, rescale);
    }
    _mm512_store_ps(unit_.max + at, max_);
  }

  [[gnu::always_inline]] void weigh_rows() {
    const std::size_t first = step_ * kTileDepth + part_ * kPartRows;
    const float* scores = unit_.scores_of(tile_, first);
    const F32 scale = _mm512_set1_ps(scale_);
    const auto weight = [&](std::size_t row) __attribute__((always_inline)) {
      return exp2_not_positive(_mm512_fmsub_ps(_mm512_load_ps(scores + row * kLanes), scale, max_));
    };
    F32 w[kPartRows];
    if (first + kPartRows <= seen_) {
      TRIBUTARY_UNROLL
      for (std::size_t i = 0; i < kPartRows; ++i) w[i] = weight(i);
    } else {
      // Rows that are not seen may hold anything. Zeros change no bit of the sums.
      for (std::size_t i = 0; i < kPartRows; ++i) {
        w[i] = first + i < seen_ ? weight(i) : _mm512_setzero_ps();
      }
    }
    const F32 low = _mm512_add_ps(_mm512_add_ps(w[0], w[1]), _mm512_add_ps(w[2], w[3]));
    const F32 high = _mm512_add_ps(_mm512_add_ps(w[4], w[5]), _mm512_add_ps(w[6], w[7]));
    sum_ = _mm512_add_ps(sum_, _mm512_add_ps(low, high));
    TRIBUTARY_UNROLL
    for (std::size_t i = 0; i < kPartRows; i += 2) {
      pairs_[part_ * kPartRows / 2 + i / 2] = Tiles::pair_of(w[i], w[i + 1]);
    }
    ++part_;
  }

  /// Query rows become the rows of a tile.
  [[gnu::always_inline]] void store_step() {
    Words square[kLanes];
    TRIBUTARY_UNROLL
    for (std::size_t i = 0; i < kLanes; ++i) square[i] = pairs_[i];
    transpose(square);
    std::byte* to = weights_ + (tile_ * kBlockSteps + step_) * kTileBytes;
    TRIBUTARY_UNROLL
    for (std::size_t i = 0; i < kLanes; ++i) _mm512_store_si512(to + i * kTileRowBytes, square[i]);
    part_ = 0;
    if (++step_ * kTileDepth < seen_) return;
    _mm512_store_ps(unit_.sum + tile_ * kLanes, sum_);
    next_tile(tile_ + 1);
  }

  const Unit& unit_;
  std::size_t begin_, count_;
  std::byte* weights_;
  float scale_;
  std::size_t tile_ = 0, seen_ = 0;
  std::size_t stage_ = 0, max_stages_ = 0;  // of the maximum
  std::size_t step_ = 0, part_ = 0;         // of the weights
  F32 max_{}, sum_{};
  Words pairs_[kLanes];
};

}  // namespace tributary::cpu::amx
TRIBUTARY_AVX512_END
