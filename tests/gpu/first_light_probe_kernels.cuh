// The kernels of first_light_probes.cuh, made of the many-rows kernel's own instructions.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/base/dtype.h"
#include "kernels/cuda/sm90/layout.h"
#include "kernels/cuda/sm90/products.h"
#include "kernels/cuda/sm90/ptx90.h"
#include "kernels/cuda/sm90/softmax.h"

namespace tributary::first_light {

namespace ptx = cuda::ptx;
namespace sm90 = cuda::sm90;

constexpr int kTile = 64;  // rows and columns
constexpr int kWide = 256;
constexpr std::uint32_t kProbeBytes = 8 * sm90::kTileBytes;

/// A descriptor with its two distances exchanged: what the manual's two names could mean.
TRIBUTARY_DEVICE std::uint64_t exchanged(std::uint64_t operand) {
  const std::uint64_t first = operand >> 16 & 0x3fff;
  const std::uint64_t second = operand >> 32 & 0x3fff;
  return (operand & ~(std::uint64_t{0x3fff} << 16 | std::uint64_t{0x3fff} << 32)) | first << 32 |
         second << 16;
}

/// [64 rows][64 columns] into a tile, by ordinary stores in the kernel's layout.
TRIBUTARY_DEVICE void store_tile(std::uint32_t tile, const bf16* values, int stride) {
  const int thread = static_cast<int>(ptx::thread());
  for (int i = thread; i < kTile * 8; i += sm90::kGroupThreads) {
    const bf16* from = values + i / 8 * stride + i % 8 * 8;
    ptx::store_shared(sm90::chunk_at(tile, i / 8, i % 8),
                      ptx::load_halves(reinterpret_cast<const std::byte*>(from)));
  }
}
TRIBUTARY_DEVICE void dump(std::uint32_t from, std::uint32_t bytes, std::uint32_t* to) {
  for (std::uint32_t i = ptx::thread() * 16; i < bytes; i += sm90::kGroupThreads * 16) {
    const ptx::Chunk chunk = ptx::load_shared_chunk(from + i);
    for (int w = 0; w < 4; ++w) to[i / 4 + w] = chunk.words[w];
  }
}
template <int kCount>
TRIBUTARY_DEVICE void write_sum(const float (&sum)[kCount], float* to, int columns) {
  for (int i = 0; i < kCount; ++i) {
    const int row = sm90::upper_row() + i / 2 % 2 * 8;
    to[row * columns + i / 4 * 8 + sm90::first_column() + i % 2] = sum[i];
  }
}

/// Tile (column 64, row 64) of the array, by block 0 to itself, or by each block of a cluster of
/// two to both: block 0 the first tile, block 1 the second.
template <int kBlocks>
__global__ void tma_probe(const __grid_constant__ CUtensorMap map, std::uint32_t* out) {
  const std::uint32_t shared = ptx::tile_memory();
  const std::uint32_t rank = kBlocks == 1 ? 0 : ptx::cluster_rank();
  const std::uint32_t full = shared + 2 * sm90::kTileBytes;
  const std::uint32_t there = full + 8;
  if (ptx::thread() == 0) {
    ptx::init_barrier(full, 1);
    ptx::init_barrier(there, kBlocks);
    ptx::publish_barriers();
    ptx::expect_bytes(full, kBlocks * sm90::kTileBytes);
  }
  if constexpr (kBlocks == 1) {
    ptx::sync_block();
  } else {
    ptx::sync_cluster();
  }
  if (ptx::thread() == 0) {
    const std::uint32_t to = shared + rank * sm90::kTileBytes;
    const auto column = static_cast<std::int32_t>(rank + 1) * sm90::kColumns;
    if constexpr (kBlocks == 1) {
      ptx::copy_tile(to, full, &map, column, sm90::kPage);
    } else {
      ptx::copy_tile_to_blocks(to, full, &map, column, sm90::kPage, 3);
    }
  }
  ptx::wait_phase(full, 0);
  // A remote arrival from every block, at every block.
  if (ptx::thread() < kBlocks) ptx::arrive_in_block(there, ptx::thread());
  ptx::wait_phase(there, 0);
  dump(shared, kBlocks * sm90::kTileBytes, out + rank * kBlocks * sm90::kTileBytes / 4);
  if constexpr (kBlocks > 1) ptx::sync_cluster();
}

/// sum = a b^T, 64 x 64 x 64, `rounds` times with freshly stored operands: the last round counts.
__global__ void rows_probe(const bf16* a, const bf16* b, float* out, bool exchange, int rounds) {
  const std::uint32_t shared = ptx::tile_memory();
  float sum[32];
  for (int round = 0; round < rounds; ++round) {
    // Every round but the last multiplies others.
    const bf16* left = round + 1 == rounds ? a : b;
    const bf16* right = round + 1 == rounds ? b : a;
    store_tile(shared, left, kTile);
    store_tile(shared + sm90::kTileBytes, right, kTile);
    ptx::publish_writes();
    ptx::sync_block();
    ptx::begin_products(sum);
    for (std::uint32_t step = 0; step < 4; ++step) {
      std::uint64_t rows = ptx::rows_operand(shared + step * 32);
      std::uint64_t keys = ptx::rows_operand(shared + sm90::kTileBytes + step * 32);
      if (exchange) {
        rows = exchanged(rows);
        keys = exchanged(keys);
      }
      ptx::multiply_rows(sum, rows, keys, step > 0);
    }
    ptx::commit_products();
    ptx::wait_products(sum);
    ptx::sync_block();
  }
  write_sum(sum, out, kTile);
}

/// sum (as it is in `out`) += a [64 x 64] b [64 x 256]; a from shared memory or registers.
__global__ void columns_probe(const bf16* a, const bf16* b, float* out, bool registers,
                              bool exchange) {
  const std::uint32_t shared = ptx::tile_memory();
  const std::uint32_t values = shared + sm90::kTileBytes;
  store_tile(shared, a, kTile);
  for (int t = 0; t < 4; ++t) {
    store_tile(values + static_cast<std::uint32_t>(t) * sm90::kTileBytes, b + t * kTile, kWide);
  }
  float sum[128];
  for (int i = 0; i < 128; ++i) {
    const int row = sm90::upper_row() + i / 2 % 2 * 8;
    sum[i] = out[row * kWide + i / 4 * 8 + sm90::first_column() + i % 2];
  }
  std::uint32_t weights[4][4];
  for (int step = 0; step < 4; ++step) {
    for (int j = 0; j < 4; ++j) {
      const int row = sm90::upper_row() + j % 2 * 8;
      const int column = step * 16 + sm90::first_column() + j / 2 * 8;
      weights[step][j] = a[row * kTile + column].bits |
                         static_cast<std::uint32_t>(a[row * kTile + column + 1].bits) << 16;
    }
  }
  ptx::publish_writes();
  ptx::sync_block();
  ptx::begin_products(sum);
  for (std::uint32_t step = 0; step < 4; ++step) {
    std::uint64_t right =
        ptx::columns_operand(values + step * 16 * sm90::kRowBytes, sm90::kTileBytes);
    if (exchange) right = exchanged(right);
    if (registers) {
      ptx::multiply_columns(sum, weights[step], right);
    } else {
      ptx::multiply_columns(sum, ptx::rows_operand(shared + step * 32), right);
    }
  }
  ptx::commit_products();
  ptx::wait_products(sum);
  write_sum(sum, out, kWide);
}

/// Two groups take registers that a third gives.
__global__ void __launch_bounds__(sm90::kThreads, 1) registers_probe(std::uint32_t* out) {
  if (ptx::thread() < sm90::kComputeThreads) {
    ptx::take_registers<sm90::kComputeRegisters>();
  } else {
    ptx::give_registers<sm90::kCopyRegisters>();
  }
  out[ptx::thread()] = ptx::thread() + 1;
}

}  // namespace tributary::first_light
