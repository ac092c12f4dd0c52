// The vector units' work while tiles multiply, in steps small enough to go between two products:
// values of a block are interleaved in pairs of rows, and scores are made into weights. A loop of
// tile products calls step() once per product of depth 32; drain() does the rest.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/base/ceil_div.h"
#include "kernels/cpu/amx_unit.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu::amx {

/// The values of a block's rows as tiles of B: pairs of rows, interleaved, 32 columns of all rows
/// or 64 at a time. Columns are permuted within 32, and are put in order when the states are
/// written (order_columns). Rows past the last are zeros.
class Interleave {
 public:
  /// The first `count` rows of the block at `begin`.
  Interleave(const Unit& unit, std::size_t begin, std::size_t count)
      : pairs_(ceil_div(count, kTileDepth) * kTileRows) {
    for (std::size_t i = 0; i < 2 * pairs_; ++i) {
      const std::size_t at = begin + i;
      rows_[i] = i < count ? unit.page(at / kPageTokens) + at % kPageTokens * unit.row_bytes()
                           : unit.zeros;
    }
  }

  /// Begins with 32 * `vectors` columns from column 32 * `vector` on; step() will be called `steps`
  /// times. To `to`: for each 32 rows 2 * `vectors` tiles.
  void start(std::size_t vector, std::size_t vectors, std::byte* to, std::size_t steps) {
    offset_ = vector * kTileRowBytes;
    vectors_ = vectors;
    to_ = to;
    pair_ = 0;
    per_step_ = ceil_div(pairs_, steps);
  }

  [[gnu::always_inline]] void step() {
    if (pair_ == pairs_) return;
    const std::size_t end = std::min(pair_ + per_step_, pairs_);
    for (; pair_ < end; ++pair_) {
      const std::byte* first = rows_[2 * pair_] + offset_;
      const std::byte* second = rows_[2 * pair_ + 1] + offset_;
      std::byte* to =
          to_ + pair_ / kTileRows * (2 * vectors_ * kTileBytes) + pair_ % kTileRows * kTileRowBytes;
      for (std::size_t i = 0; i < vectors_; ++i) {
        const Words above = _mm512_loadu_si512(first + i * kTileRowBytes);
        const Words below = _mm512_loadu_si512(second + i * kTileRowBytes);
        _mm512_store_si512(to, _mm512_unpacklo_epi16(above, below));
        _mm512_store_si512(to + kTileBytes, _mm512_unpackhi_epi16(above, below));
        to += 2 * kTileBytes;
      }
    }
  }
  void drain() {
    while (pair_ < pairs_) step();
  }

 private:
  std::array<const std::byte*, kBlockTokens> rows_;
  std::size_t pairs_;
  std::size_t offset_ = 0, vectors_ = 0;
  std::byte* to_ = nullptr;
  std::size_t pair_ = 0, per_step_ = 0;
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
  Weigh(const Unit& unit, std::size_t begin, std::size_t count)
      : unit_(unit), begin_(begin), count_(count), scale_(unit.args->softmax_scale * 1.44269504F) {
    next_tile(0);
  }

  /// The scores of the query tiles before `tile` are there.
  void ready(std::size_t tile) { ready_ = tile; }
  [[gnu::always_inline]] void step() {
    if (tile_ >= ready_) return;
    if (stage_ < max_stages_) {
      take_maximum();
    } else if (part_ < kParts) {
      weigh_rows();
    } else {
      store_step();
    }
  }
  void drain() {
    while (tile_ < ready_) step();
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

  [[gnu::always_inline]] void store_step() {
    if (unit_.direct) {
      store_direct();
    } else {
      store_pairs();
    }
    part_ = 0;
    if (++step_ * kTileDepth < seen_) return;
    _mm512_store_ps(unit_.sum + tile_ * kLanes, sum_);
    next_tile(tile_ + 1);
  }

  /// Query rows become the rows of a tile.
  [[gnu::always_inline]] void store_pairs() const {
    Words square[kLanes];
    TRIBUTARY_UNROLL
    for (std::size_t i = 0; i < kLanes; ++i) square[i] = pairs_[i];
    transpose(square);
    std::byte* to = unit_.weights_of(tile_) + step_ * kTileBytes;
    TRIBUTARY_UNROLL
    for (std::size_t i = 0; i < kLanes; ++i) _mm512_store_si512(to + i * kTileRowBytes, square[i]);
  }
  /// Of each 16 rows two tiles: a row's weight before a zero, and after one.
  [[gnu::always_inline]] void store_direct() const {
    const Words low = _mm512_set1_epi32(0xffff);
    for (std::size_t half = 0; half < 2; ++half) {
      Words square[kLanes];
      TRIBUTARY_UNROLL
      for (std::size_t i = 0; i < kLanes / 2; ++i) {
        const Words pair = pairs_[half * kLanes / 2 + i];
        square[2 * i] = _mm512_and_si512(pair, low);
        square[2 * i + 1] = _mm512_srli_epi32(pair, 16);
      }
      transpose(square);
      std::byte* to = unit_.weights_of(tile_) + (2 * step_ + half) * 2 * kTileBytes;
      TRIBUTARY_UNROLL
      for (std::size_t i = 0; i < kLanes; ++i) {
        _mm512_store_si512(to + i * kTileRowBytes, square[i]);
        _mm512_store_si512(to + kTileBytes + i * kTileRowBytes, _mm512_slli_epi32(square[i], 16));
      }
    }
  }

  const Unit& unit_;
  std::size_t begin_, count_;
  float scale_;
  std::size_t ready_ = 0;
  std::size_t tile_ = 0, seen_ = 0;
  std::size_t stage_ = 0, max_stages_ = 0;  // of the maximum
  std::size_t step_ = 0, part_ = 0;         // of the weights
  F32 max_{}, sum_{};
  Words pairs_[kLanes];
};

}  // namespace tributary::cpu::amx
TRIBUTARY_AVX512_END
