// Tiles of AMX as arrays, bit for bit like the processor's (kernels/cpu/amx_tiles.h), for machines
// without them: the kernels' own source runs over them. Needs AVX-512.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cpu/amx_tiles.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu {

namespace emulated {
void configure(std::size_t rows);
void release();
void zero(int tile);
void load(int tile, const void* data, std::size_t stride_bytes);
void store(int tile, void* data, std::size_t stride_bytes);
void add_dot(int sums, int a, int b);
}  // namespace emulated

/// The calling thread's. Tiles that are used outside configure() and release() end the process, as
/// the processor would.
struct EmulatedTiles {
  static void configure(std::size_t rows = kTileRows) { emulated::configure(rows); }
  static void release() { emulated::release(); }
  static void fence() {}
  template <int kTile>
  static void zero() {
    emulated::zero(kTile);
  }
  template <int kTile>
  static void load(const void* data, std::size_t stride_bytes) {
    emulated::load(kTile, data, stride_bytes);
  }
  template <int kTile>
  static void store(void* data, std::size_t stride_bytes) {
    emulated::store(kTile, data, stride_bytes);
  }
  template <int kSums, int kA, int kB>
  static void add_dot() {
    emulated::add_dot(kSums, kA, kB);
  }
  [[gnu::always_inline]] static Words pair_of(F32 first, F32 second) {
    const Words low = _mm512_srli_epi32(rounded(first), 16);
    return _mm512_or_si512(low, _mm512_and_si512(rounded(second), _mm512_set1_epi32(~0xffff)));
  }

 private:
  /// VCVTNE2PS2BF16, in the upper halves: to nearest even, subnormals as 0, NaN quiet.
  [[gnu::always_inline]] static Words rounded(F32 value) {
    const Words bits = _mm512_castps_si512(value);
    const Words even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    Words result = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    const Words magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    result = _mm512_mask_or_epi32(result, nan, bits, _mm512_set1_epi32(0x00400000));
    const __mmask16 small = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x00800000));
    return _mm512_mask_andnot_epi32(result, small, _mm512_set1_epi32(0x7fffffff), bits);
  }
};

/// EmulatedTiles::pair_of for callers of any target.
[[nodiscard]] std::array<std::uint32_t, kLanes> emulated_pairs(
    const std::array<float, kLanes>& first, const std::array<float, kLanes>& second);

}  // namespace tributary::cpu
TRIBUTARY_AVX512_END
