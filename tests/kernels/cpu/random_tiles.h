// Random operands of a tile product, fast enough for 10^8 of them, and the comparison of two kinds
// of tiles on them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/amx_tiles.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu {

/// Operands of one product, and its result in the place of the sums.
struct alignas(64) TileOperands {
  std::array<float, kTileRows * kTileRows> sums{};
  std::array<std::uint16_t, kTileRows * kTileDepth> a{};  // bf16 [16][32]
  std::array<std::uint16_t, kTileRows * kTileDepth> b{};  // bf16 [16 pairs][16 columns][2]
};

/// Operands of one kind: what a case is about, in all places or in some.
class RandomTiles {
 public:
  /// 0: any bits; 1: like scores and weights; 2: products around the smallest normal number;
  /// 3: subnormal numbers and zeros among small ones; 4: infinities, NaN, the largest numbers.
  static constexpr int kKinds = 5;

  explicit RandomTiles(std::uint64_t seed) {
    alignas(64) std::array<std::uint64_t, 16> states{};
    for (std::uint64_t& state : states) {
      // SplitMix64 (Steele, Lea, Flood 2014): seeds that differ little give states that do not.
      seed += 0x9e3779b97f4a7c15U;
      std::uint64_t z = seed;
      z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9U;
      z = (z ^ z >> 27) * 0x94d049bb133111ebU;
      state = z ^ z >> 31;
    }
    first_ = _mm512_load_si512(states.data());
    second_ = _mm512_load_si512(states.data() + 8);
  }

  void fill(int kind, TileOperands& operands) {
    for (std::size_t i = 0; i < operands.sums.size(); i += 2 * kLanes) {
      const Words upper = halves(kind);
      const Words lower = bits();
      _mm512_store_si512(operands.sums.data() + i, _mm512_unpacklo_epi16(lower, upper));
      _mm512_store_si512(operands.sums.data() + i + kLanes, _mm512_unpackhi_epi16(lower, upper));
    }
    for (std::size_t i = 0; i < operands.a.size(); i += kTileDepth) {
      _mm512_store_si512(operands.a.data() + i, halves(kind));
      _mm512_store_si512(operands.b.data() + i, halves(kind));
    }
  }

 private:
  /// xorshift128+ (Vigna 2017), eight at a time.
  Words bits() {
    Words x = first_;
    const Words y = second_;
    first_ = y;
    x = _mm512_xor_si512(x, _mm512_slli_epi64(x, 23));
    second_ = _mm512_xor_si512(_mm512_xor_si512(x, y), _mm512_xor_si512(_mm512_srli_epi64(x, 17),
                                                                        _mm512_srli_epi64(y, 26)));
    return _mm512_add_epi64(second_, y);
  }
  /// 32 numbers of bf16 with exponents [least, least + count).
  Words with_exponent(short least, short count) {
    const Words exponent = _mm512_add_epi16(_mm512_mulhi_epu16(bits(), _mm512_set1_epi16(count)),
                                            _mm512_set1_epi16(least));
    const Words rest = _mm512_and_si512(bits(), _mm512_set1_epi16(static_cast<short>(0x807f)));
    return _mm512_or_si512(rest, _mm512_slli_epi16(exponent, 7));
  }
  Words halves(int kind) {
    switch (kind) {
      case 0:
        return bits();
      case 1:
        return with_exponent(115, 14);
      case 2:
        return with_exponent(60, 8);
      case 3: {
        const __mmask32 half = _mm512_movepi16_mask(bits());
        return _mm512_mask_mov_epi16(with_exponent(40, 60), half, with_exponent(0, 1));
      }
      default: {
        // One in 32 is a zero, one in 64 an infinity or NaN.
        const Words dice = _mm512_srli_epi16(bits(), 10);
        const Words zero = _mm512_and_si512(bits(), _mm512_set1_epi16(static_cast<short>(0x8000)));
        Words all = with_exponent(100, 155);
        all = _mm512_mask_mov_epi16(all, _mm512_cmplt_epi16_mask(dice, _mm512_set1_epi16(2)), zero);
        // Half of these have no fraction: infinities.
        const Words special = with_exponent(255, 1);
        const Words infinity =
            _mm512_and_si512(special, _mm512_set1_epi16(static_cast<short>(0xff80)));
        all = _mm512_mask_mov_epi16(
            all, _mm512_cmpeq_epi16_mask(dice, _mm512_set1_epi16(2)),
            _mm512_mask_mov_epi16(special, _mm512_movepi16_mask(bits()), infinity));
        return all;
      }
    }
  }

  Words first_, second_;
};

/// Of the first `rows` rows of A.
template <typename Tiles>
void tile_product(TileOperands& operands, std::size_t rows = kTileRows) {
  Tiles::configure(rows);
  Tiles::fence();
  Tiles::template load<3>(operands.sums.data(), kTileRowBytes);
  Tiles::template load<5>(operands.a.data(), kTileRowBytes);
  Tiles::template load<7>(operands.b.data(), kTileRowBytes);
  Tiles::template add_dot<3, 5, 7>();
  Tiles::template store<3>(operands.sums.data(), kTileRowBytes);
  Tiles::fence();
  Tiles::release();
}

/// Bits, but any NaN for a NaN: no manual says which payload.
inline bool same_sums(const TileOperands& left, const TileOperands& right) {
  for (std::size_t i = 0; i < left.sums.size(); i += kLanes) {
    const F32 x = _mm512_load_ps(left.sums.data() + i);
    const F32 y = _mm512_load_ps(right.sums.data() + i);
    const __mmask16 equal = _mm512_cmpeq_epi32_mask(_mm512_castps_si512(x), _mm512_castps_si512(y));
    const __mmask16 nan =
        _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q) & _mm512_cmp_ps_mask(y, y, _CMP_UNORD_Q);
    if (static_cast<__mmask16>(equal | nan) != 0xffff) return false;
  }
  return true;
}

struct TileComparison {
  std::uint64_t compared = 0, different = 0;
  int first_kind = -1;  // of the first that differ
};

/// `count` products on both, of every kind in turn.
template <typename Left, typename Right>
TileComparison compare_tiles(std::uint64_t seed, std::uint64_t count) {
  RandomTiles random(seed);
  TileComparison result;
  for (; result.compared < count; ++result.compared) {
    const int kind = static_cast<int>(result.compared % RandomTiles::kKinds);
    TileOperands left;
    random.fill(kind, left);
    TileOperands right = left;
    const std::size_t rows = kTileRows - result.compared / RandomTiles::kKinds % kTileRows;
    tile_product<Left>(left, rows);
    tile_product<Right>(right, rows);
    if (same_sums(left, right)) continue;
    if (result.different++ == 0) result.first_kind = kind;
  }
  return result;
}

}  // namespace tributary::cpu
TRIBUTARY_AVX512_END
