// Tiles of AMX behind a thin wrapper: the only place with their instructions. Kernels are templates
// over such a type; the tests have a second one (tests/kernels/cpu/emulated_tiles.h), so that their
// source runs on machines without AMX too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/avx512_math.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu {

/// A tile has up to 16 rows of 64 bytes: 16 fp32 sums, 32 bf16 of A or 16 pairs of bf16 of B.
inline constexpr std::size_t kTileRows = 16;
inline constexpr std::size_t kTileRowBytes = 64;
inline constexpr std::size_t kTileBytes = kTileRows * kTileRowBytes;
inline constexpr std::size_t kTileFloats = kTileBytes / sizeof(float);
/// Elements of bf16 in a row of a tile: the depth of one product.
inline constexpr std::size_t kTileDepth = 32;
inline constexpr std::size_t kTiles = 8;
/// The tile that has all 16 rows, however few the others have.
inline constexpr std::size_t kWholeTile = 7;

/// The tiles of the calling thread. A kernel calls configure() first and release() at its end: in
/// between the system saves 8 KiB more at every switch of the thread.
///
/// The compiler does not treat tile loads as reads. Data that a loop of tile instructions reads is
/// written before a fence(), and its stores are read after one. The instructions are in assembly,
/// because the intrinsics of both compilers differ in what they accept as a tile's number.
struct HardwareTiles {
  /// `rows`: of the sums and of A. A product of fewer takes as much less time: a row a cycle.
  static void configure(std::size_t rows = kTileRows) {
    struct alignas(64) Configuration {
      std::uint8_t palette = 1;
      std::uint8_t start_row = 0;
      std::uint8_t reserved[14] = {};
      std::uint16_t row_bytes[16] = {};
      std::uint8_t rows[16] = {};
    };
    static_assert(sizeof(Configuration) == 64);
    Configuration configuration;
    for (std::size_t tile = 0; tile < kTiles; ++tile) {
      configuration.row_bytes[tile] = kTileRowBytes;
      configuration.rows[tile] = static_cast<std::uint8_t>(tile == kWholeTile ? kTileRows : rows);
    }
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  static void release() { asm volatile("tilerelease" : : :); }
  static void fence() { asm volatile("" : : : "memory"); }

  template <int kTile>
  [[gnu::always_inline]] static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  /// Row r from data + r * stride_bytes.
  template <int kTile>
  [[gnu::always_inline]] static void load(const void* data, std::size_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(data), "r"(stride_bytes), "i"(kTile));
  }
  template <int kTile>
  [[gnu::always_inline]] static void store(void* data, std::size_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)"
                 :
                 : "r"(data), "r"(stride_bytes), "i"(kTile)
                 : "memory");
  }
  /// Sums += A B, as TDPBF16PS: per element, even and odd elements of the depth have sums of their
  /// own that begin at +0, one fused multiply-add after the other; both are added, and that to the
  /// element. Rounded to nearest even, subnormals in and out are 0, whatever MXCSR says.
  template <int kSums, int kA, int kB>
  [[gnu::always_inline]] static void add_dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }

  /// Pairs of bf16, to nearest even, subnormals as 0: `first` in the lower halves. In assembly so
  /// that callers need no target beyond AVX-512 (all processors with tiles have the instruction).
  [[gnu::always_inline]] static Words pair_of(F32 first, F32 second) {
    Words halves = _mm512_setzero_si512();
    asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(halves) : "v"(first), "v"(second));
    const Words order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, halves);
  }
};

/// The sums kFirst .. kFirst + kCount - 1 before a chain of products: zeros, or the tiles at
/// `sums`, one after the other.
template <typename Tiles, int kFirst, int kCount>
[[gnu::always_inline]] inline void take_sums(const float* sums, bool zeros) {
  static_assert(kCount == 2 || kCount == 4);
  if (zeros) {
    Tiles::template zero<kFirst>();
    Tiles::template zero<kFirst + 1>();
    if constexpr (kCount == 4) take_sums<Tiles, kFirst + 2, 2>(nullptr, true);
  } else {
    Tiles::template load<kFirst>(sums, kTileRowBytes);
    Tiles::template load<kFirst + 1>(sums + kTileFloats, kTileRowBytes);
    if constexpr (kCount == 4) take_sums<Tiles, kFirst + 2, 2>(sums + 2 * kTileFloats, false);
  }
}
/// Stores them after it.
template <typename Tiles, int kFirst, int kCount>
[[gnu::always_inline]] inline void store_sums(float* sums) {
  static_assert(kCount == 2 || kCount == 4);
  Tiles::template store<kFirst>(sums, kTileRowBytes);
  Tiles::template store<kFirst + 1>(sums + kTileFloats, kTileRowBytes);
  if constexpr (kCount == 4) store_sums<Tiles, kFirst + 2, 2>(sums + 2 * kTileFloats);
}

}  // namespace tributary::cpu
TRIBUTARY_AVX512_END
