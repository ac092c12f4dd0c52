// The instructions of a GPU that the attention kernels use, one thin function each; shared memory
// is addressed by 32-bit offsets as PTX does. Without nvcc the functions are only declared: the
// emulation under tests/ defines them, so that the kernels' own source runs on a CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"

#if defined(__CUDACC__)
#define TRIBUTARY_DEVICE __device__ __forceinline__
#else
#include <bit>
#include <cmath>
#define TRIBUTARY_DEVICE inline
#endif

namespace tributary::cuda::ptx {

/// 16 bytes, the most that a thread moves at once.
struct alignas(16) Chunk {
  std::uint32_t words[4];
};

#if defined(__CUDACC__)

TRIBUTARY_DEVICE unsigned thread() {
  return threadIdx.x;
}
TRIBUTARY_DEVICE unsigned block() {
  return blockIdx.x;
}
TRIBUTARY_DEVICE unsigned block_y() {
  return blockIdx.y;
}

TRIBUTARY_DEVICE void sync_block() {
  __syncthreads();
}
TRIBUTARY_DEVICE void sync_warp() {
  __syncwarp();
}

/// The block's dynamic shared memory, aligned to 128 bytes.
TRIBUTARY_DEVICE std::uint32_t shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(memory));
}

TRIBUTARY_DEVICE void store_shared(std::uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
TRIBUTARY_DEVICE void store_shared(std::uint32_t address, std::uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
TRIBUTARY_DEVICE void store_shared(std::uint32_t address, const Chunk& value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(value.words[0]),
               "r"(value.words[1]), "r"(value.words[2]), "r"(value.words[3])
               : "memory");
}
TRIBUTARY_DEVICE float load_shared(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
TRIBUTARY_DEVICE Chunk load_shared_chunk(std::uint32_t address) {
  Chunk value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.words[0]), "=r"(value.words[1]), "=r"(value.words[2]),
                 "=r"(value.words[3])
               : "r"(address)
               : "memory");
  return value;
}

/// Copies `bytes` (0 to 16) bytes and pads to 16 with zeros. Visible only after a wait and a
/// barrier.
TRIBUTARY_DEVICE void copy_async(std::uint32_t shared, const void* global, std::uint32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared),
               "l"(__cvta_generic_to_global(global)), "r"(bytes)
               : "memory");
}
TRIBUTARY_DEVICE void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `pending` (0 to 3) groups of this thread are in flight.
TRIBUTARY_DEVICE void wait_copies(int pending) {
  switch (pending) {  // PTX requires a constant
    case 3:
      asm volatile("cp.async.wait_group 3;" ::: "memory");
      break;
    case 2:
      asm volatile("cp.async.wait_group 2;" ::: "memory");
      break;
    case 1:
      asm volatile("cp.async.wait_group 1;" ::: "memory");
      break;
    default:
      asm volatile("cp.async.wait_group 0;" ::: "memory");
  }
}

/// Four 8 x 8 matrices of 16-bit elements; lanes 8i to 8i + 7 give the rows of matrix i.
TRIBUTARY_DEVICE void load_matrices(std::uint32_t row, std::uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row)
               : "memory");
}
TRIBUTARY_DEVICE void load_matrices_transposed(std::uint32_t row, std::uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row)
               : "memory");
}
/// sum [16 x 8] += a [16 x 16] b [16 x 8], bf16 products, fp32 sums.
TRIBUTARY_DEVICE void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                   std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Whether `so` holds in some lane; the same in all.
TRIBUTARY_DEVICE bool any_lane(bool so) {
  return __any_sync(0xffffffffU, so) != 0;
}
/// The value of the lane whose number differs by `bits`.
TRIBUTARY_DEVICE float shuffle_xor(float value, unsigned bits) {
  return __shfl_xor_sync(0xffffffffU, value, bits);
}

// Arithmetic with explicit rounding: otherwise nvcc may fuse a product and a sum.
TRIBUTARY_DEVICE float add(float a, float b) {
  return __fadd_rn(a, b);
}
TRIBUTARY_DEVICE float subtract(float a, float b) {
  return __fsub_rn(a, b);
}
TRIBUTARY_DEVICE float multiply(float a, float b) {
  return __fmul_rn(a, b);
}
TRIBUTARY_DEVICE float divide(float a, float b) {
  return __fdiv_rn(a, b);
}
TRIBUTARY_DEVICE float multiply_add(float a, float b, float c) {
  return __fmaf_rn(a, b, c);
}
TRIBUTARY_DEVICE float larger(float a, float b) {
  return fmaxf(a, b);
}
/// 2^x within 2 ulp, subnormal results to 0.
TRIBUTARY_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
TRIBUTARY_DEVICE float log2(float x) {
  return ::log2f(x);
}
TRIBUTARY_DEVICE float exp(float x) {
  return ::expf(x);
}
TRIBUTARY_DEVICE float log(float x) {
  return ::logf(x);
}
TRIBUTARY_DEVICE float float_of(std::uint32_t bits) {
  return __uint_as_float(bits);
}
/// Two bf16, to nearest even; `low` in the lower half.
TRIBUTARY_DEVICE std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

#else

unsigned thread();
unsigned block();
unsigned block_y();
void sync_block();
void sync_warp();
std::uint32_t shared_memory();
void store_shared(std::uint32_t address, float value);
void store_shared(std::uint32_t address, std::uint32_t value);
void store_shared(std::uint32_t address, const Chunk& value);
float load_shared(std::uint32_t address);
Chunk load_shared_chunk(std::uint32_t address);
void copy_async(std::uint32_t shared, const void* global, std::uint32_t bytes);
void commit_copies();
void wait_copies(int pending);
void load_matrices(std::uint32_t row, std::uint32_t (&matrices)[4]);
void load_matrices_transposed(std::uint32_t row, std::uint32_t (&matrices)[4]);
void multiply_add(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1);
bool any_lane(bool so);
float shuffle_xor(float value, unsigned bits);
std::uint32_t pack_bf16(float low, float high);

inline float add(float a, float b) {
  return a + b;
}
inline float subtract(float a, float b) {
  return a - b;
}
inline float multiply(float a, float b) {
  return a * b;
}
inline float divide(float a, float b) {
  return a / b;
}
inline float multiply_add(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float larger(float a, float b) {
  return std::fmax(a, b);
}
inline float exp2_fast(float x) {
  return std::exp2(x);
}
inline float log2(float x) {
  return std::log2(x);
}
inline float exp(float x) {
  return std::exp(x);
}
inline float log(float x) {
  return std::log(x);
}
inline float float_of(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}

#endif

/// The values of four e4m3 codes, the one in the lowest byte first.
TRIBUTARY_DEVICE void floats_of_codes(std::uint32_t codes, float (&values)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  asm("{\n"
      "  .reg .b16 low, high, h0, h1, h2, h3;\n"
      "  .reg .b32 two, others;\n"
      "  mov.b32 {low, high}, %4;\n"
      "  cvt.rn.f16x2.e4m3x2 two, low;\n"
      "  cvt.rn.f16x2.e4m3x2 others, high;\n"
      "  mov.b32 {h0, h1}, two;\n"
      "  mov.b32 {h2, h3}, others;\n"
      "  cvt.f32.f16 %0, h0;\n"
      "  cvt.f32.f16 %1, h1;\n"
      "  cvt.f32.f16 %2, h2;\n"
      "  cvt.f32.f16 %3, h3;\n"
      "}"
      : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
      : "r"(codes));
#else
  for (int i = 0; i < 4; ++i) {
    values[i] = f8_e4m3_to_float(static_cast<std::uint8_t>(codes >> (8 * i)));
  }
#endif
}

/// 16 bytes from an address aligned to 2.
TRIBUTARY_DEVICE Chunk load_halves(const std::byte* from) {
  const auto* halves = reinterpret_cast<const std::uint16_t*>(from);
  Chunk chunk{};
  for (int i = 0; i < 8; ++i) {
    chunk.words[i / 2] |= static_cast<std::uint32_t>(halves[i]) << (i % 2 * 16);
  }
  return chunk;
}

}  // namespace tributary::cuda::ptx
