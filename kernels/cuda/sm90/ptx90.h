// The instructions of sm_90a that kernels/cuda/attend/ptx.h lacks, one thin function each:
// transaction barriers, tile copies by the bulk copy engine, clusters, fences between proxies, and
// the warpgroup products. Without nvcc they are only declared: the emulation under tests/ defines
// them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attend/ptx.h"

struct CUtensorMap_st;  // CUtensorMap; device code only passes its address on

namespace tributary::cuda::ptx {

// Operands of a product lie in shared memory as tiles of 64 x 64 bf16, rows of 128 bytes, the
// eight 16-byte chunks of row r exchanged by XOR with r % 8 (128-byte swizzle, what the copy engine
// writes); tiles are aligned to 1024 bytes. A descriptor names a start address, two distances and
// the swizzle, all in units of 16 bytes.

inline constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;

/// Rows are M (or N), columns are K: 64 rows x 16 columns from `address`, eight rows 1024 bytes
/// apart. The next 16 columns are 32 bytes further: the swizzle applies to address bits.
TRIBUTARY_DEVICE std::uint64_t rows_operand(std::uint32_t address) {
  return kSwizzle128 | std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 16 |
         (address & 0x3ffffU) >> 4;
}
/// Rows are K, columns are N: 16 rows from `address`, eight rows 1024 bytes apart; 64 columns a
/// tile, tiles `tile_bytes` apart. The next 16 rows are 2048 bytes further.
TRIBUTARY_DEVICE std::uint64_t columns_operand(std::uint32_t address, std::uint32_t tile_bytes) {
  return kSwizzle128 | std::uint64_t{1024 >> 4} << 32 |
         static_cast<std::uint64_t>(tile_bytes >> 4) << 16 | (address & 0x3ffffU) >> 4;
}
/// The same operand, `bytes` further. It takes only one addition, because a product is issued every
/// 32 cycles.
TRIBUTARY_DEVICE std::uint64_t further(std::uint64_t operand, std::uint32_t bytes) {
  return (operand >> 32) << 32 | (static_cast<std::uint32_t>(operand) + (bytes >> 4));
}

#if defined(__CUDACC__)

/// The block's dynamic shared memory, aligned to 1024 bytes. Traps if it is not: the compiler is
/// asked for it, but CUDA promises 16, and with any other base every swizzled tile would be wrong.
TRIBUTARY_DEVICE std::uint32_t tile_memory() {
  extern __shared__ __align__(1024) unsigned char tiles[];
  const auto base = static_cast<std::uint32_t>(__cvta_generic_to_shared(tiles));
  // In PTX: the compiler trusts its own alignment and would drop the test.
  asm volatile(
      "{\n"
      ".reg .pred bad;\n"
      ".reg .b32 rest;\n"
      "and.b32 rest, %0, 1023;\n"
      "setp.ne.u32 bad, rest, 0;\n"
      "@bad trap;\n"
      "}" ::"r"(base)
      : "memory");
  return base;
}

// Shows where a warp waits, to find out why a launch does not end. Empty except in a debug build of
// one source (tests/gpu/first_light.cu), which explains the words.
#if defined(TRIBUTARY_WAIT_TRACE)
TRIBUTARY_DEVICE void note_wait(std::uint32_t kind, std::uint32_t what, std::uint32_t parity);
#else
TRIBUTARY_DEVICE void note_wait(std::uint32_t /*kind*/, std::uint32_t /*what*/,
                                std::uint32_t /*parity*/) {}
#endif
inline constexpr std::uint32_t kWaitOfThreads = 1;  // what: the barrier's number
inline constexpr std::uint32_t kWaitOfPhase = 2;    // what: the barrier's address
inline constexpr std::uint32_t kWaitOfCluster = 3;

/// Waits until `threads` threads have called this or arrive_at for barrier `id` (1 to 15).
TRIBUTARY_DEVICE void meet_at(std::uint32_t id, std::uint32_t threads) {
  note_wait(kWaitOfThreads, id, 0);
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TRIBUTARY_DEVICE void arrive_at(std::uint32_t id, std::uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Transaction barriers, 8 bytes of shared memory: a phase ends when all arrivals and all announced
// bytes are there; phases alternate in parity.

TRIBUTARY_DEVICE void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to the cluster and the copy engine; a meeting must follow.
TRIBUTARY_DEVICE void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Arrives once and announces `bytes` of copies.
TRIBUTARY_DEVICE void expect_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// The next two have the scope of the block. The scope of the cluster would flush and invalidate
// caches at every call. It is not needed: blocks only pass each other permission to overwrite a
// tile, whose readers have waited for their products and whose writers have published.

/// Arrives once at the barrier with this address in block `rank` of the cluster.
TRIBUTARY_DEVICE void arrive_in_block(std::uint32_t barrier, std::uint32_t rank) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// A thousand times what a launch takes. A tool that watches every access takes longer: its build of
// one source (tests/gpu/first_light.cu) says how long.
#if !defined(TRIBUTARY_WAIT_SECONDS)
#define TRIBUTARY_WAIT_SECONDS 10
#endif

/// Returns when the phase of this parity has ended; before the first phase, parity 1 has. Traps
/// after TRIBUTARY_WAIT_SECONDS, so that the host gets an error instead of a device that hangs.
TRIBUTARY_DEVICE void wait_phase(std::uint32_t barrier, std::uint32_t parity) {
  note_wait(kWaitOfPhase, barrier, parity);
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      ".reg .u64 begin, now;\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ended;\n"
      "mov.u64 begin, %%globaltimer;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra ended;\n"
      "mov.u64 now, %%globaltimer;\n"
      "sub.u64 now, now, begin;\n"
      "setp.gt.u64 done, now, %2;\n"
      "@done trap;\n"
      "bra again;\n"
      "ended:\n"
      "}" ::"r"(barrier),
      "r"(parity), "n"(TRIBUTARY_WAIT_SECONDS * 1'000'000'000LL)
      : "memory");
}

TRIBUTARY_DEVICE std::uint32_t cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
/// Synchronises all threads of all blocks of the cluster.
TRIBUTARY_DEVICE void sync_cluster() {
  note_wait(kWaitOfCluster, 0, 0);
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

/// This thread's writes to shared memory become visible to products and to the copy engine; a
/// barrier must follow.
TRIBUTARY_DEVICE void publish_writes() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

TRIBUTARY_DEVICE void prefetch_map(const CUtensorMap_st* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// A policy for copies: data that they bring into the L2 cache makes room for others first.
TRIBUTARY_DEVICE std::uint64_t evict_first() {
  std::uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Copies the map's box from (column, row) to `to`; its bytes count at `barrier`. A policy of 0 is
/// none.
TRIBUTARY_DEVICE void copy_tile(std::uint32_t to, std::uint32_t barrier, const CUtensorMap_st* map,
                                std::int32_t column, std::int32_t row, std::uint64_t policy = 0) {
  if (policy == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "l"(policy)
        : "memory");
  }
}
/// The same to these addresses in every block of the cluster whose bit is set in `blocks`.
TRIBUTARY_DEVICE void copy_tile_to_blocks(std::uint32_t to, std::uint32_t barrier,
                                          const CUtensorMap_st* map, std::int32_t column,
                                          std::int32_t row, std::uint16_t blocks,
                                          std::uint64_t policy = 0) {
  if (policy == 0) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5, %6;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks), "l"(policy)
        : "memory");
  }
}
/// Set this warpgroup's registers per thread to kCount. take_registers() takes more than it has and
/// waits until others have given theirs away; give_registers() keeps fewer.
template <int kCount>
TRIBUTARY_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
TRIBUTARY_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Stores four 8 x 8 matrices of 16-bit elements to shared memory; lanes 8i to 8i + 7 give the rows
/// of matrix i. It takes the registers that load_matrices() gives.
TRIBUTARY_DEVICE void store_matrices(std::uint32_t row, const std::uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

// Warpgroup products. Asynchronous: between issue and wait nobody may touch the sums or change the
// operands.

/// Call this before the first product, and after registers of the sum were touched. Names `sum`, so
/// that the compiler moves no use of it past this point.
template <int kCount>
TRIBUTARY_DEVICE void begin_products(float (&sum)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
TRIBUTARY_DEVICE void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all products. Names their `sum` for the same reason.
template <int kCount>
TRIBUTARY_DEVICE void wait_products(float (&sum)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

#else

std::uint32_t tile_memory();
void meet_at(std::uint32_t id, std::uint32_t threads);
void arrive_at(std::uint32_t id, std::uint32_t threads);
void init_barrier(std::uint32_t barrier, std::uint32_t arrivals);
void publish_barriers();
void expect_bytes(std::uint32_t barrier, std::uint32_t bytes);
void arrive_in_block(std::uint32_t barrier, std::uint32_t rank);
void wait_phase(std::uint32_t barrier, std::uint32_t parity);
std::uint32_t cluster_rank();
void sync_cluster();
void publish_writes();
void prefetch_map(const CUtensorMap_st* map);
std::uint64_t evict_first();
void copy_tile(std::uint32_t to, std::uint32_t barrier, const CUtensorMap_st* map,
               std::int32_t column, std::int32_t row, std::uint64_t policy = 0);
void copy_tile_to_blocks(std::uint32_t to, std::uint32_t barrier, const CUtensorMap_st* map,
                         std::int32_t column, std::int32_t row, std::uint16_t blocks,
                         std::uint64_t policy = 0);
template <int kCount>
void take_registers() {}
template <int kCount>
void give_registers() {}
void store_matrices(std::uint32_t row, const std::uint32_t (&matrices)[4]);
void begin_products(float* sum, int count);
template <int kCount>
void begin_products(float (&sum)[kCount]) {
  begin_products(sum, kCount);
}
void commit_products();
void wait_products(float* sum, int count);
template <int kCount>
void wait_products(float (&sum)[kCount]) {
  wait_products(sum, kCount);
}

#endif

}  // namespace tributary::cuda::ptx
