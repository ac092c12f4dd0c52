// Decode attention of bf16 queries over the bf16 rows of a leaf on tiles: a running maximum over
// blocks of 128 rows. Scores come out as [rows x query rows], so that softmax crosses no lanes.
//
// A query row's result depends only on its query, the cache rows that it sees and the softmax
// scale. Every sum is one chain over columns or cache rows in an order that counts from the leaf's
// first row, and rows that the query row does not see are zeros before they meet a tile.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernels/cpu/amx_direct.h"
#include "kernels/cpu/amx_products.h"
#include "kernels/cpu/amx_side.h"
#include "kernels/cpu/amx_unit.h"

TRIBUTARY_AVX512_BEGIN
namespace tributary::cpu::amx {

/// Queries as tiles of B: pairs of columns x 16 query rows. Heads and columns that are missing are
/// zeros.
inline void pack_query(const Unit& unit) {
  const LeafKernelArgs& args = *unit.args;
  const std::size_t words = args.latent_dim / 2;
  for (std::size_t tile = 0; tile < unit.tiles; ++tile) {
    const std::size_t head = tile % unit.token_tiles * kTileRows;
    const std::byte* from = args.queries + tile / unit.token_tiles * args.query_stride_bytes +
                            (args.head_begin + head) * args.latent_dim * sizeof(bf16);
    const std::size_t heads = std::min(kTileRows, unit.heads - head);
    for (std::size_t step = 0; step < unit.steps; ++step) {
      const std::size_t count = std::min(kLanes, words - step * kLanes);
      const auto mask = static_cast<__mmask16>((1U << count) - 1);
      Words square[kLanes];
      for (std::size_t i = 0; i < kLanes; ++i) {
        const std::byte* row = i < heads ? from + i * args.latent_dim * sizeof(bf16) : unit.zeros;
        square[i] = _mm512_maskz_loadu_epi32(mask, row + step * kTileRowBytes);
      }
      transpose(square);
      std::byte* to = unit.query_tiles(tile) + step * kTileBytes;
      for (std::size_t i = 0; i < kLanes; ++i) {
        _mm512_store_si512(to + i * kTileRowBytes, square[i]);
      }
    }
  }
}

/// Multiplies the sums so far by the factors of the block at `begin`. Multiplying by 1 changes no
/// bit, and other factors are rare after the first blocks of a leaf.
inline void rescale(const Unit& unit, std::size_t begin, std::size_t count) {
  for (std::size_t tile = 0; tile < unit.tiles; ++tile) {
    if (unit.seen(tile, begin, count) == 0) continue;
    for (std::size_t row = 0; row < kTileRows; ++row) {
      const float factor = unit.rescale[tile * kLanes + row];
      if (factor == 1) continue;
      const F32 factors = _mm512_set1_ps(factor);
      float* sums = unit.output_tile(tile, 0) + row * kLanes;
      for (std::size_t column = 0; column < unit.columns; ++column) {
        _mm512_store_ps(sums, _mm512_mul_ps(factors, _mm512_load_ps(sums)));
        sums += kTileRows * kLanes;
      }
    }
  }
}

/// States of all query rows.
inline void finish(const Unit& unit) {
  const LeafKernelArgs& args = *unit.args;
  const std::size_t rank = args.kv_lora_rank;
  for (std::size_t tile = 0; tile < unit.tiles; ++tile) {
    float* record = args.states + tile / unit.token_tiles * args.heads * (rank + 1);
    const std::size_t first = tile % unit.token_tiles * kTileRows;
    const std::size_t heads = std::min(kTileRows, unit.heads - first);
    float* o = record + (args.head_begin + first) * rank;
    float* lse = record + args.heads * rank + args.head_begin + first;
    if (unit.visible[tile] == 0) {
      std::fill_n(o, heads * rank, 0.0F);
      std::fill_n(lse, heads, kMinusInfinity);
      continue;
    }
    const F32 sum = _mm512_load_ps(unit.sum + tile * kLanes);
    const auto mask = static_cast<__mmask16>((1U << heads) - 1);
    _mm512_mask_storeu_ps(lse, mask,
                          _mm512_fmadd_ps(_mm512_load_ps(unit.max + tile * kLanes),
                                          _mm512_set1_ps(0.693147181F), log_positive(sum)));
    for (std::size_t row = 0; row < heads; ++row) {
      const F32 inverse = _mm512_set1_ps(1.0F / unit.sum[tile * kLanes + row]);
      for (std::size_t column = 0; column < unit.columns; column += 2) {
        F32 begin;  // NOLINT(cppcoreguidelines-init-variables): both filled by the next line
        F32 end;    // NOLINT(cppcoreguidelines-init-variables)
        const F32 low = _mm512_load_ps(unit.output_tile(tile, column) + row * kLanes);
        const F32 high = _mm512_load_ps(unit.output_tile(tile, column + 1) + row * kLanes);
        if (unit.direct) {
          alternate_columns(low, high, &begin, &end);
        } else {
          order_columns(low, high, &begin, &end);
        }
        float* to = o + row * rank + column * kLanes;
        _mm512_storeu_ps(to, _mm512_mul_ps(begin, inverse));
        _mm512_storeu_ps(to + kLanes, _mm512_mul_ps(end, inverse));
      }
    }
  }
}

template <typename Tiles>
void attend_leaf(const LeafKernelArgs& args, std::byte* scratch) {
  const Unit unit = make_unit(args, scratch);
  pack_query(unit);
  const auto seen = static_cast<std::size_t>(unit.visible[unit.tiles - 1]);
  Tiles::configure();
  for (std::size_t begin = 0; begin < seen; begin += kBlockTokens) {
    const std::size_t count = std::min(kBlockTokens, seen - begin);
    Feed feed = next_block(unit, begin, seen);
    Weigh<Tiles> weigh(unit, begin, count);
    score_block(unit, begin, count, weigh, feed);
    weigh.drain();
    if (begin > 0) rescale(unit, begin, count);
    if (unit.direct) {
      add_direct<Tiles>(unit, begin, count, feed);
    } else {
      add_values<Tiles>(unit, begin, count, feed);
    }
  }
  Tiles::release();
  finish(unit);
}

inline bool supports(std::size_t latent_dim, std::size_t kv_lora_rank) {
  return latent_dim % 2 == 0 && kv_lora_rank % (2 * kLanes) == 0;
}

inline std::size_t scratch_bytes(std::size_t latent_dim, std::size_t kv_lora_rank) {
  Unit unit{.tiles = kMostTiles,
            .steps = ceil_div(latent_dim, kTileDepth),
            .columns = kv_lora_rank / kLanes,
            .direct = true};  // has more weights
  return place(unit, nullptr, latent_dim);
}

/// Whole query tiles: a unit's heads are a multiple of 16, if the call has as many.
inline UnitCut unit_cut(std::size_t /*heads*/, std::size_t tokens, bool /*copies*/) {
  const std::size_t most = std::max(kTileRows, kUnitRows / tokens / kTileRows * kTileRows);
  return {
      .least_rows = kTileRows * tokens, .most_rows = most * tokens, .quantum = kTileRows * tokens};
}

template <typename Tiles>
PairKernel pair_kernel() {
  return {.block_rows = kBlockTokens,
          .supports = supports,
          .scratch_bytes = scratch_bytes,
          .unit_cut = unit_cut,
          .attend_leaf = attend_leaf<Tiles>};
}

}  // namespace tributary::cpu::amx
TRIBUTARY_AVX512_END
