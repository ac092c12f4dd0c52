// Products of a warpgroup (wgmma.mma_async, bf16 in, fp32 sums), sm_90a. Thread t of the 128 holds
// two rows of a sum [64 x N], 16 (t / 32) + t % 32 / 4 and the one 8 further, and of every 8
// columns the pair from 2 (t % 4). The upper row is in sum[4 i] and sum[4 i + 1], the lower one in
// sum[4 i + 2] and sum[4 i + 3].
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/ptx90.h"

namespace tributary::cuda::ptx {

#if defined(__CUDACC__)

#define TRIBUTARY_SUMS_4(sum, i) "+f"(sum[i]), "+f"(sum[i + 1]), "+f"(sum[i + 2]), "+f"(sum[i + 3])
#define TRIBUTARY_SUMS_16(sum, i)                                                       \
  TRIBUTARY_SUMS_4(sum, i), TRIBUTARY_SUMS_4(sum, i + 4), TRIBUTARY_SUMS_4(sum, i + 8), \
      TRIBUTARY_SUMS_4(sum, i + 12)

/// sum [64 x 64] = a [64 x 16] b^T (+ sum), b [64 x 16]: both are rows_operand. Without
/// `accumulate` the sum's old values do not count.
TRIBUTARY_DEVICE void multiply_rows(float (&sum)[32], std::uint64_t a, std::uint64_t b,
                                    bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred more;\n"
      "setp.ne.b32 more, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "%32, %33, more, 1, 1, 0, 0;\n"
      "}"
      : TRIBUTARY_SUMS_16(sum, 0), TRIBUTARY_SUMS_16(sum, 16)
      : "l"(a), "l"(b), "r"(static_cast<std::int32_t>(accumulate)));
}

/// The same with a in registers, as multiply_columns below takes it.
TRIBUTARY_DEVICE void multiply_rows(float (&sum)[32], const std::uint32_t (&a)[4], std::uint64_t b,
                                    bool accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred more;\n"
      "setp.ne.b32 more, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, %36, more, 1, 1, 0;\n"
      "}"
      : TRIBUTARY_SUMS_16(sum, 0), TRIBUTARY_SUMS_16(sum, 16)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<std::int32_t>(accumulate)));
}

/// sum [64 x 256] += a [64 x 16] b [16 x 256]: a is rows_operand, b columns_operand.
TRIBUTARY_DEVICE void multiply_columns(float (&sum)[128], std::uint64_t a, std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "%128, %129, 1, 1, 1, 0, 1;"
      : TRIBUTARY_SUMS_16(sum, 0), TRIBUTARY_SUMS_16(sum, 16), TRIBUTARY_SUMS_16(sum, 32),
        TRIBUTARY_SUMS_16(sum, 48), TRIBUTARY_SUMS_16(sum, 64), TRIBUTARY_SUMS_16(sum, 80),
        TRIBUTARY_SUMS_16(sum, 96), TRIBUTARY_SUMS_16(sum, 112)
      : "l"(a), "l"(b));
}

/// The same with a in registers: as bf16 pairs, of the columns 2 (t % 4) of the upper and the lower
/// row, and of those 8 further.
TRIBUTARY_DEVICE void multiply_columns(float (&sum)[128], const std::uint32_t (&a)[4],
                                       std::uint64_t b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "{%128, %129, %130, %131}, %132, 1, 1, 1, 1;"
      : TRIBUTARY_SUMS_16(sum, 0), TRIBUTARY_SUMS_16(sum, 16), TRIBUTARY_SUMS_16(sum, 32),
        TRIBUTARY_SUMS_16(sum, 48), TRIBUTARY_SUMS_16(sum, 64), TRIBUTARY_SUMS_16(sum, 80),
        TRIBUTARY_SUMS_16(sum, 96), TRIBUTARY_SUMS_16(sum, 112)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#undef TRIBUTARY_SUMS_16
#undef TRIBUTARY_SUMS_4

#else

void multiply_rows(float (&sum)[32], std::uint64_t a, std::uint64_t b, bool accumulate);
void multiply_rows(float (&sum)[32], const std::uint32_t (&a)[4], std::uint64_t b, bool accumulate);
void multiply_columns(float (&sum)[128], std::uint64_t a, std::uint64_t b);
void multiply_columns(float (&sum)[128], const std::uint32_t (&a)[4], std::uint64_t b);

#endif

}  // namespace tributary::cuda::ptx
