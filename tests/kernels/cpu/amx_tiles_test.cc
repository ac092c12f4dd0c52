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

namespace tributary::cpu {
namespace {

constexpr float kSmallestNormal = std::numeric_limits<float>::min();

struct alignas(64) Operands {
  std::array<float, kTileRows * kTileRows> sums{};
  std::array<std::uint16_t, kTileRows * kTileDepth> a{};  // [16][32]
  std::array<std::uint16_t, kTileRows * kTileDepth> b{};  // [16 pairs][16 columns][2]
};

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

void expected_product(Operands& operands) {
  for (std::size_t row = 0; row < kTileRows; ++row) {
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

TRIBUTARY_AVX512_BEGIN
template <typename Tiles>
void product(Operands& operands) {
  Tiles::configure();
  Tiles::fence();
  Tiles::template load<3>(operands.sums.data(), kTileRowBytes);
  Tiles::template load<5>(operands.a.data(), kTileRowBytes);
  Tiles::template load<6>(operands.b.data(), kTileRowBytes);
  Tiles::template add_dot<3, 5, 6>();
  Tiles::template store<3>(operands.sums.data(), kTileRowBytes);
  Tiles::fence();
  Tiles::release();
}
TRIBUTARY_AVX512_END

/// Operands of one kind: what a case is about, in all places or in some.
class Random {
 public:
  explicit Random(std::uint32_t seed) : random_(seed) {}

  Operands operands(int kind) {
    Operands all;
    for (float& sum : all.sums) {
      sum = std::bit_cast<float>(static_cast<std::uint32_t>(bf16_of(kind)) << 16 |
                                 static_cast<std::uint32_t>(random_() & 0xffffU));
    }
    for (std::uint16_t& half : all.a) half = bf16_of(kind);
    for (std::uint16_t& half : all.b) half = bf16_of(kind);
    return all;
  }

  static constexpr int kKinds = 5;

 private:
  std::uint16_t bf16_of(int kind) {
    const auto bits = static_cast<std::uint32_t>(random_());
    const auto with_exponent = [bits](std::uint32_t least, std::uint32_t count) {
      return static_cast<std::uint16_t>((bits & 0x807fU) | (least + (bits >> 16) % count) << 7);
    };
    switch (kind) {
      case 0:  // any bits
        return static_cast<std::uint16_t>(bits);
      case 1:  // like scores and weights
        return with_exponent(115, 14);
      case 2:  // products around the smallest normal number, and their sums
        return with_exponent(60, 8);
      case 3:  // subnormal numbers and zeros of both signs among small ones
        return bits >> 24 < 128 ? with_exponent(0, 1) : with_exponent(40, 60);
      default:  // infinities, NaN, the largest numbers, zeros
        return bits >> 24 < 8
                   ? static_cast<std::uint16_t>(bits & 0x8000U)
                   : with_exponent(bits >> 24 < 12 ? 255 : 100, bits >> 24 < 12 ? 1 : 155);
    }
  }

  std::mt19937 random_;
};

/// Bits, but any NaN for a NaN: no manual says which payload.
testing::AssertionResult same_sums(const Operands& got, const Operands& expected) {
  for (std::size_t i = 0; i < got.sums.size(); ++i) {
    const float x = got.sums.at(i);
    const float y = expected.sums.at(i);
    if (std::isnan(x) && std::isnan(y)) continue;
    if (std::bit_cast<std::uint32_t>(x) != std::bit_cast<std::uint32_t>(y)) {
      return testing::AssertionFailure() << "element " << i << ": " << x << ", expected " << y;
    }
  }
  return testing::AssertionSuccess();
}

TEST(AmxTiles, TheEmulationIsTheStatementOfTheManual) {
  if (emulated_amx_table() == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  Random random(1);
  for (int kind = 0; kind < Random::kKinds; ++kind) {
    for (int round = 0; round < 40; ++round) {
      const Operands start = random.operands(kind);
      Operands expected = start;
      expected_product(expected);
      Operands got = start;
      product<EmulatedTiles>(got);
      ASSERT_TRUE(same_sums(got, expected)) << "kind " << kind << ", round " << round;
    }
  }
}

TEST(AmxTiles, EvenAndOddElementsHaveSumsOfTheirOwn) {
  if (emulated_amx_table() == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  // 1 and -1 in even places, 2^-30 in an odd one: one chain in order would lose it.
  Operands operands;
  for (std::size_t k = 0; k < 4; ++k) operands.b.at(k * kTileDepth) = 0x3f80;
  for (std::size_t k = 0; k < 4; ++k) operands.b.at(k * kTileDepth + 1) = 0x3f80;
  operands.a[0] = 0x3f80;
  operands.a[1] = 0x3080;
  operands.a[2] = 0xbf80;
  operands.sums[0] = -0.0F;
  product<EmulatedTiles>(operands);
  EXPECT_EQ(operands.sums[0], 0x1p-30F);
  // A sum of nothing is +0: -0 + +0.
  operands.sums[1] = -0.0F;
  operands.a = {};
  product<EmulatedTiles>(operands);
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
  // Another seed in each repetition that shuffles.
  Random random(3 + static_cast<std::uint32_t>(testing::UnitTest::GetInstance()->random_seed()));
  for (int round = 0; round < 20'000; ++round) {
    const Operands start = random.operands(round % Random::kKinds);
    Operands expected = start;
    product<EmulatedTiles>(expected);
    Operands got = start;
    product<HardwareTiles>(got);
    ASSERT_TRUE(same_sums(got, expected)) << "round " << round;
  }
}

}  // namespace
}  // namespace tributary::cpu
