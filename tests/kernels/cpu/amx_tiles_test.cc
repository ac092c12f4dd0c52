// The product of tiles, stated slowly and without vectors, against the emulation, and against the
// processor where it has tiles.
#include "kernels/cpu/amx_tiles.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "kernels/cpu/tiles.h"
#include "tests/kernels/cpu/emulated_table.h"
#include "tests/kernels/cpu/emulated_tiles.h"
#include "tests/kernels/cpu/random_tiles.h"

namespace tributary::cpu {
namespace {

constexpr float kSmallestNormal = std::numeric_limits<float>::min();

float flushed(float x) {
  return std::abs(x) < kSmallestNormal ? std::copysign(0.0F, x) : x;
}

float of_bf16(std::uint16_t half) {
  return flushed(std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16));
}

/// a b + c, rounded once to nearest even, with subnormal results as 0. A result is subnormal if it
/// is below the smallest normal number after rounding to 24 bits, of any exponent.
float multiply_add(float a, float b, float c) {
  const float result = std::fma(a, b, c);
  if (!(std::abs(result) <= kSmallestNormal)) return result;
  // Both terms are far below the largest number here: 2^64 times as large nothing is subnormal.
  const float large = std::fma(std::ldexp(a, 32), std::ldexp(b, 32), std::ldexp(c, 64));
  if (std::abs(large) < std::ldexp(kSmallestNormal, 64)) return std::copysign(0.0F, result);
  return result;
}

float sum_of(float a, float b) {
  return multiply_add(a, 1, b);
}

void expected_product(TileOperands& operands, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < kTileRows; ++column) {
      std::array<float, 2> sums{};
      for (std::size_t k = 0; k < kTileRows; ++k) {
        for (std::size_t half = 0; half < 2; ++half) {
          sums.at(half) = multiply_add(of_bf16(operands.a.at(row * kTileDepth + 2 * k + half)),
                                       of_bf16(operands.b.at(k * kTileDepth + 2 * column + half)),
                                       sums.at(half));
        }
      }
      float& to = operands.sums.at(row * kTileRows + column);
      to = sum_of(flushed(to), sum_of(sums[0], sums[1]));
    }
  }
}

/// A mistake that an emulation might make: the last element of a product.
struct LastBitWrong : EmulatedTiles {
  template <int kTile>
  static void store(void* data, std::size_t stride_bytes) {
    EmulatedTiles::store<kTile>(data, stride_bytes);
    float* last = static_cast<float*>(data) + 255;
    if (!std::isnan(*last)) {
      *last = std::bit_cast<float>(std::bit_cast<std::uint32_t>(*last) ^ 1U);
    }
  }
};

TEST(AmxTiles, TheEmulationIsTheStatementOfTheManual) {
  if (emulated_amx_table() == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  RandomTiles random(1);
  for (int kind = 0; kind < RandomTiles::kKinds; ++kind) {
    for (int round = 0; round < 40; ++round) {
      TileOperands expected;
      random.fill(kind, expected);
      TileOperands got = expected;
      const std::size_t rows = kTileRows - static_cast<std::size_t>(round) % kTileRows;
      expected_product(expected, rows);
      tile_product<EmulatedTiles>(got, rows);
      ASSERT_TRUE(same_sums(got, expected)) << "kind " << kind << ", round " << round;
    }
  }
}

TEST(AmxTiles, RandomOperandsAreOfTheirKind) {
  if (emulated_amx_table() == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  RandomTiles random(2);
  const auto share = [&](int kind, const auto& is) {
    int yes = 0;
    constexpr int kRounds = 50;
    for (int round = 0; round < kRounds; ++round) {
      TileOperands operands;
      random.fill(kind, operands);
      for (const auto* halves : {&operands.a, &operands.b}) {
        for (const std::uint16_t half : *halves) {
          yes += is(std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16)) ? 1 : 0;
        }
      }
    }
    return yes / (2.0 * kRounds * static_cast<double>(kTileRows * kTileDepth));
  };
  const auto subnormal = [](float x) { return std::fpclassify(x) == FP_SUBNORMAL; };
  const auto nan = [](float x) { return std::isnan(x); };
  const auto infinite = [](float x) { return std::isinf(x); };
  const auto negative_zero = [](float x) { return x == 0 && std::signbit(x); };
  EXPECT_NEAR(share(0, nan), 1.0 / 256, 0.002);
  EXPECT_NEAR(share(1, [](float x) { return std::abs(x) >= 0x1p-12F && std::abs(x) < 4; }), 1, 0);
  EXPECT_NEAR(share(2, [](float x) { return std::abs(x) >= 0x1p-67F && std::abs(x) < 0x1p-59F; }),
              1, 0);
  EXPECT_NEAR(share(3, subnormal), 0.5, 0.02);
  EXPECT_GT(share(3, negative_zero), 0.001);
  EXPECT_NEAR(share(4, nan), 1.0 / 128, 0.002);
  EXPECT_NEAR(share(4, infinite), 1.0 / 128, 0.002);
  EXPECT_NEAR(share(4, negative_zero), 1.0 / 64, 0.004);
}

TEST(AmxTiles, TheComparisonFindsABitThatDiffers) {
  if (emulated_amx_table() == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  const TileComparison same = compare_tiles<EmulatedTiles, EmulatedTiles>(7, 500);
  EXPECT_EQ(same.compared, 500U);
  EXPECT_EQ(same.different, 0U);
  const TileComparison other = compare_tiles<LastBitWrong, EmulatedTiles>(7, 500);
  EXPECT_EQ(other.compared, 500U);
  // Where the last element is NaN, nothing can be told.
  EXPECT_GT(other.different, 250U);
  EXPECT_GE(other.first_kind, 0);
}

TEST(AmxTiles, EvenAndOddElementsHaveSumsOfTheirOwn) {
  if (emulated_amx_table() == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  // 1 and -1 in even places, 2^-30 in an odd one: one chain in order would lose it.
  TileOperands operands;
  for (std::size_t k = 0; k < 4; ++k) operands.b.at(k * kTileDepth) = 0x3f80;
  for (std::size_t k = 0; k < 4; ++k) operands.b.at(k * kTileDepth + 1) = 0x3f80;
  operands.a[0] = 0x3f80;
  operands.a[1] = 0x3080;
  operands.a[2] = 0xbf80;
  operands.sums[0] = -0.0F;
  tile_product<EmulatedTiles>(operands);
  EXPECT_EQ(operands.sums[0], 0x1p-30F);
  // A sum of nothing is +0: -0 + +0.
  operands.sums[1] = -0.0F;
  operands.a = {};
  tile_product<EmulatedTiles>(operands);
  EXPECT_FALSE(std::signbit(operands.sums[1]));
}

TEST(AmxTiles, ConversionRoundsToNearestEven) {
  if (emulated_amx_table() == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  std::mt19937 random(2);
  std::array<float, kLanes> first{};
  std::array<float, kLanes> second{};
  const auto expected = [](float value) -> std::uint32_t {
    const auto bits = std::bit_cast<std::uint32_t>(flushed(value));
    if (std::isnan(value)) return bits >> 16 | 0x40U;
    return (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
  };
  for (int round = 0; round < 2000; ++round) {
    for (float& value : first) value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    // Halfway between two, and exact ones.
    for (float& value : second) {
      value = std::bit_cast<float>(static_cast<std::uint32_t>(random()) & 0xffff8000U);
    }
    const std::array<std::uint32_t, kLanes> pairs = emulated_pairs(first, second);
    for (std::size_t i = 0; i < kLanes; ++i) {
      ASSERT_EQ(pairs.at(i), expected(first.at(i)) | expected(second.at(i)) << 16)
          << first.at(i) << " " << second.at(i);
    }
  }
}

TEST(AmxTiles, TheProcessorDoesWhatTheEmulationDoes) {
  if (!tiles_usable()) GTEST_SKIP() << "NOT TESTED: no AMX here";
  // Far more of them: tests/kernels/cpu/compare_tiles.cc, which bench/amx_check.sh runs.
  const TileComparison result = compare_tiles<HardwareTiles, EmulatedTiles>(3, 100'000);
  EXPECT_EQ(result.different, 0U) << "the first of kind " << result.first_kind;
}

}  // namespace
}  // namespace tributary::cpu
