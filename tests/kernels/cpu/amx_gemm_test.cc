// Products on tiles: the parts of an activation add up to the activation.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "core/base/dtype.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/host_memory.h"
#include "tests/kernels/cpu/emulated_table.h"

namespace tributary::cpu {
namespace {

/// One token times a panel whose output 0 has the weight `weight` in column `column` of `cols` and
/// zeros elsewhere.
float product_of_one(const KernelTable& table, float x, float weight, std::size_t cols,
                     std::size_t column) {
  std::vector<bf16> panel(cols * kPanel);
  panel[column * kPanel] = to_bf16(weight);
  std::vector<float> activations(cols);
  activations[column] = x;
  const GemmKernel& kernel = table.gemm_bf16;
  const AlignedBytes packed = allocate_aligned(kernel.packed_bytes(1, cols, 1), "a token");
  for (std::size_t k = 0; k < cols; k += kPanelDepth) {
    kernel.pack({.tokens = 1,
                 .cols = cols,
                 .column = k,
                 .x = activations.data(),
                 .x_token_stride = cols,
                 .packed = packed.get()});
  }
  alignas(64) static thread_local std::array<float, kGemmScratch> scratch;
  std::array<float, kPanel> y{};
  kernel.multiply({.panel = reinterpret_cast<const std::byte*>(panel.data()),
                   .dtype = DType::kBF16,
                   .cols = cols,
                   .outputs = kPanel,
                   .tokens = 1,
                   .packed = packed.get(),
                   .y = y.data(),
                   .y_token_stride = kPanel},
                  scratch.data());
  return y[0];
}

TEST(AmxGemm, AnActivationIsTheSumOfItsParts) {
  const KernelTable* table = emulated_amx_table();
  if (table == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    // Any sign and fraction; exponents of which no part flushes.
    const auto bits = static_cast<std::uint32_t>(random());
    const std::uint32_t exponent = 24 + random() % 231;
    const auto x = std::bit_cast<float>((bits & 0x807fffffU) | exponent << 23);
    EXPECT_EQ(product_of_one(*table, x, 1, 1 + random() % 40, 0), x);
  }
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.0F, infinity, -infinity, std::numeric_limits<float>::max(),
                        std::numeric_limits<float>::min()}) {
    EXPECT_EQ(product_of_one(*table, x, 1, 33, 32), x);
  }
  EXPECT_TRUE(
      std::isnan(product_of_one(*table, std::numeric_limits<float>::quiet_NaN(), 1, 33, 32)));
}

TEST(AmxGemm, APartBelowTheSmallestNormalNumberCountsAsZero) {
  const KernelTable* table = emulated_amx_table();
  if (table == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  const float x = 0x1.0001p-120F;  // the last part is 2^-136
  EXPECT_EQ(product_of_one(*table, x, 0x1p20F, 64, 63), 0x1p-100F);
}

}  // namespace
}  // namespace tributary::cpu
