#include "tests/kernels/cpu/emulated_tiles.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cpu/amx_attend.h"
#include "kernels/cpu/amx_gemm.h"
#include "kernels/cpu/amx_gemm_f8.h"
#include "kernels/cpu/amx_leaf.h"
#include "tests/kernels/cpu/emulated_table.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu {
namespace emulated {
namespace {

struct State {
  alignas(64) std::byte tiles[kTiles][kTileBytes] = {};
  bool configured = false;
  std::size_t rows = 0;

  [[nodiscard]] std::size_t rows_of(int tile) const {
    return tile == static_cast<int>(kWholeTile) ? kTileRows : rows;
  }
};
thread_local State state;

std::byte* data_of(int tile) {
  if (!state.configured) {
    static_cast<void>(std::fputs("a tile is used without a configuration\n", stderr));
    std::abort();
  }
  return state.tiles[tile];
}

// A separate function, so that the compiler moves none of the arithmetic out of the region with its
// rounding mode.
[[gnu::noinline]] void multiply(float* sums, std::size_t rows, const std::byte* a,
                                const std::byte* b) {
  const Words upper = _mm512_set1_epi32(~0xffff);
  for (std::size_t row = 0; row < rows; ++row) {
    F32 even = _mm512_setzero_ps();
    F32 odd = _mm512_setzero_ps();
    for (std::size_t k = 0; k < kTileRows; ++k) {
      std::int32_t word = 0;
      std::memcpy(&word, a + row * kTileRowBytes + k * 4, 4);
      const Words left = _mm512_set1_epi32(word);
      const Words right = _mm512_load_si512(b + k * kTileRowBytes);
      even = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(left, 16)),
                             _mm512_castsi512_ps(_mm512_slli_epi32(right, 16)), even);
      odd = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(left, upper)),
                            _mm512_castsi512_ps(_mm512_and_si512(right, upper)), odd);
    }
    float* to = sums + row * kLanes;
    _mm512_store_ps(to, _mm512_add_ps(_mm512_load_ps(to), _mm512_add_ps(even, odd)));
  }
}

}  // namespace

void configure(std::size_t rows) {
  state.configured = true;
  state.rows = rows;
  std::memset(state.tiles, 0, sizeof state.tiles);
}
void release() {
  state.configured = false;
}
void zero(int tile) {
  std::memset(data_of(tile), 0, kTileBytes);
}
void load(int tile, const void* data, std::size_t stride_bytes) {
  std::byte* to = data_of(tile);
  for (std::size_t row = 0; row < state.rows_of(tile); ++row) {
    std::memcpy(to + row * kTileRowBytes, static_cast<const std::byte*>(data) + row * stride_bytes,
                kTileRowBytes);
  }
}
void store(int tile, void* data, std::size_t stride_bytes) {
  const std::byte* from = data_of(tile);
  for (std::size_t row = 0; row < state.rows_of(tile); ++row) {
    std::memcpy(static_cast<std::byte*>(data) + row * stride_bytes, from + row * kTileRowBytes,
                kTileRowBytes);
  }
}
void add_dot(int sums, int a, int b) {
  auto* const to = reinterpret_cast<float*>(data_of(sums));
  const std::byte* const left = data_of(a);
  const std::byte* const right = data_of(b);
  // The instruction's own: to nearest even, subnormals in and out as zero, no exceptions.
  constexpr unsigned kNearest = _MM_MASK_MASK | _MM_FLUSH_ZERO_ON | 0x0040;
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kNearest);
  multiply(to, state.rows_of(sums), left, right);
  _mm_setcsr(before);
}

}  // namespace emulated

std::array<std::uint32_t, kLanes> emulated_pairs(const std::array<float, kLanes>& first,
                                                 const std::array<float, kLanes>& second) {
  std::array<std::uint32_t, kLanes> pairs{};
  _mm512_storeu_si512(pairs.data(), EmulatedTiles::pair_of(_mm512_loadu_ps(first.data()),
                                                           _mm512_loadu_ps(second.data())));
  return pairs;
}

const KernelTable* emulated_amx_table() {
  const auto tables = usable_kernel_tables();
  const auto base = std::ranges::find(tables, std::string_view("AVX3"), &KernelTable::name);
  if (base == tables.end()) return nullptr;
  static const PairKernel kernel = amx::pair_kernel<EmulatedTiles>();
  static const KernelTable table = [&base] {
    KernelTable copy = **base;
    copy.name = kAmxTableName;
    copy.pairs = &kernel;
    copy.gemm_bf16 = amx::bf16_kernel<EmulatedTiles>();
    copy.gemm_f8 = amx::f8_kernel<EmulatedTiles>();
    return copy;
  }();
  return &table;
}

}  // namespace tributary::cpu
TRIBUTARY_AVX512_END
