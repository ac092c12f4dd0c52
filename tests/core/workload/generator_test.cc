#include "core/workload/generator.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

namespace tributary {
namespace {

std::vector<float> row(const TokenGenerator& generator, std::int64_t tag, int layer,
                       std::int64_t position, std::size_t width = 16) {
  std::vector<float> values(width);
  generator.row(tag, layer, position, values);
  return values;
}

std::vector<float> query(const TokenGenerator& generator, std::int64_t tag, int layer,
                         std::int64_t position, std::size_t width = 16) {
  std::vector<float> values(width);
  generator.query(tag, layer, position, values);
  return values;
}

TEST(TokenGenerator, IsAFunctionOfItsArguments) {
  const TokenGenerator generator(5);
  EXPECT_EQ(row(generator, 3, 1, 99), row(TokenGenerator(5), 3, 1, 99));
  std::set<std::vector<float>> seen;
  for (const std::uint64_t seed : {0U, 1U, 5U}) {
    for (const std::int64_t tag : {0, 1, 2}) {
      for (const int layer : {0, 1, 2}) {
        for (const std::int64_t position : {0, 1, 2, 1 << 20}) {
          EXPECT_TRUE(seen.insert(row(TokenGenerator(seed), tag, layer, position)).second);
          EXPECT_TRUE(seen.insert(query(TokenGenerator(seed), tag, layer, position)).second);
        }
      }
    }
  }
}

TEST(TokenGenerator, AShorterVectorIsAPrefix) {
  const TokenGenerator generator(5);
  const auto whole = row(generator, 1, 2, 3, 600);
  const auto part = row(generator, 1, 2, 3, 7);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin()));
}

TEST(TokenGenerator, IsTheSameOnEveryMachine) {
  // Computed from the definition by another program.
  const auto values = row(TokenGenerator(1), 2, 3, 4, 3);
  const std::vector<std::uint32_t> bits{std::bit_cast<std::uint32_t>(values[0]),
                                        std::bit_cast<std::uint32_t>(values[1]),
                                        std::bit_cast<std::uint32_t>(values[2])};
  EXPECT_EQ(bits, (std::vector<std::uint32_t>{0xbf88f5e7, 0xbeb60a8f, 0xbf8af165}));
}

TEST(TokenGenerator, HasTheMomentsThatItSays) {
  // n values of mean 0 and deviation s: the mean's deviation is s / sqrt(n), the variance's
  // s^2 * sqrt((k - 1) / n) with kurtosis k = 2.7 (a sum of four uniforms). Five of each.
  constexpr std::size_t kCount = 1 << 18;
  const TokenGenerator generator(11);
  const auto check = [&](const std::vector<float>& values, double deviation) {
    double sum = 0;
    double squares = 0;
    double largest = 0;
    for (const float value : values) {
      sum += value;
      squares += static_cast<double>(value) * value;
      largest = std::max(largest, std::abs(static_cast<double>(value)));
    }
    const auto n = static_cast<double>(values.size());
    EXPECT_NEAR(sum / n, 0, 5 * deviation / std::sqrt(n));
    EXPECT_NEAR(squares / n, deviation * deviation, 5 * deviation * deviation * std::sqrt(1.7 / n));
    EXPECT_LE(largest, 3.5 * deviation);
    EXPECT_GE(largest, 3.0 * deviation);
  };
  check(row(generator, 1, 0, 0, kCount), 1);
  check(query(generator, 1, 0, 0, kCount), TokenGenerator::kQueryDeviation);
}

}  // namespace
}  // namespace tributary
