// exp and log of every instruction set against double, over their whole domains; the order of sums.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/kernel_table.h"

namespace tributary::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// A multiple of every number of lanes.
constexpr std::size_t kBatch = 4096;

// Distance in units of the last place of the exact value's fp32 neighbours.
double ulps(float got, double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::abs(static_cast<double>(got) - exact) / std::ldexp(1.0, exponent - 23);
}

// Every `step`-th float from `first` to `last` (bit patterns, same sign), in batches.
template <typename Check>
void sweep(void (*function)(const float*, float*, std::size_t), float first, float last,
           std::uint32_t step, const Check& check) {
  std::vector<float> in(kBatch);
  std::vector<float> out(kBatch);
  const auto end = std::bit_cast<std::uint32_t>(last);
  for (auto bits = std::bit_cast<std::uint32_t>(first); bits < end;) {
    for (float& value : in) {
      value = std::bit_cast<float>(std::min(bits, end));
      bits += step;
    }
    function(in.data(), out.data(), kBatch);
    for (std::size_t i = 0; i < kBatch; ++i) check(in[i], out[i]);
  }
}

TEST(VectorMath, ExpIsWithinTwoUlpOverItsDomain) {
  for (const KernelTable* table : usable_kernel_tables()) {
    double worst = 0;
    // From the smallest subnormal to the underflow: some 670,000 of 1.1 * 10^9 floats.
    sweep(table->exp_not_positive, -0.0F, -87.336F, 1657, [&](float x, float y) {
      worst = std::max(worst, ulps(y, std::exp(static_cast<double>(x))));
    });
    // Densely where a block's weights lie.
    sweep(table->exp_not_positive, -0.25F, -20.0F, 101, [&](float x, float y) {
      worst = std::max(worst, ulps(y, std::exp(static_cast<double>(x))));
    });
    EXPECT_LE(worst, 2.0) << table->name;
    RecordProperty(std::string(table->name) + "_exp_ulps", std::to_string(worst));
  }
}

TEST(VectorMath, ExpIsExactAtItsEnds) {
  for (const KernelTable* table : usable_kernel_tables()) {
    std::vector<float> in(kBatch, -kInfinity);
    in[0] = 0.0F;
    in[1] = -0.0F;
    in[2] = -87.4F;
    in[3] = -std::numeric_limits<float>::max();
    in[4] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> out(kBatch, -1.0F);
    table->exp_not_positive(in.data(), out.data(), kBatch);
    EXPECT_EQ(out[0], 1.0F) << table->name;
    EXPECT_EQ(out[1], 1.0F) << table->name;
    EXPECT_TRUE(std::isnan(out[4])) << table->name << ": " << out[4];
    out[0] = out[1] = out[4] = 0.0F;
    for (const float value : out) ASSERT_EQ(value, 0.0F) << table->name;
  }
}

// The digest of a pool depends on this order, and must not depend on the version of Highway.
TEST(VectorMath, SumsAddTheUpperHalfToTheLowerOne) {
  for (const KernelTable* table : usable_kernel_tables()) {
    std::vector<float> values(table->lanes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = 1.0F / static_cast<float>(3 * i * i + 1);  // another order, another sum
    }
    std::vector<float> expected = values;
    while (expected.size() > 1) {
      const std::size_t half = expected.size() / 2;
      for (std::size_t i = 0; i < half; ++i) expected[i] += expected[i + half];
      expected.resize(half);
    }
    EXPECT_EQ(table->sum(values.data()), expected[0]) << table->name;
  }
}

TEST(VectorMath, LogIsWithinItsBoundOverItsDomain) {
  for (const KernelTable* table : usable_kernel_tables()) {
    double worst = 0;
    const auto check = [&](float x, float y) {
      const double exact = std::log(static_cast<double>(x));
      // 2 ulp of the result or 2^-24; at x = 1 the result is 0.
      const double ulp = exact == 0 ? 0 : std::ldexp(1.0, std::ilogb(exact) - 23);
      const double error = std::abs(y - exact) / std::max(0x1p-24, 2 * ulp);
      worst = std::max(worst, error);
    };
    sweep(table->log, std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), 3307,
          check);
    sweep(table->log, 1.0F, 2.0F, 11, check);  // sums of two weights
    EXPECT_LE(worst, 1.0) << table->name;
  }
}

TEST(VectorMath, LogOfOneIsZeroAndOfNaNIsNaN) {
  for (const KernelTable* table : usable_kernel_tables()) {
    std::vector<float> in(kBatch, 1.0F);
    in[1] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> out(kBatch, -1.0F);
    table->log(in.data(), out.data(), kBatch);
    EXPECT_EQ(out[0], 0.0F) << table->name;
    EXPECT_TRUE(std::isnan(out[1])) << table->name;
  }
}

}  // namespace
}  // namespace tributary::cpu
