// Floats stored as narrower types, and read back.
#include "core/base/elements.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

TEST(Elements, RoundsToTheType) {
  const std::vector<float> values{1.0F, -0.0F, 1.00390625F, 3.0e38F, 1e-40F};
  std::vector<float> floats(values.size());
  store_elements(DType::kF32, values, reinterpret_cast<std::byte*>(floats.data()));
  EXPECT_EQ(std::memcmp(floats.data(), values.data(), values.size() * sizeof(float)), 0);

  std::vector<bf16> halves(values.size());
  store_elements(DType::kBF16, values, reinterpret_cast<std::byte*>(halves.data()));
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(halves[i], to_bf16(values[i]));
  EXPECT_EQ(halves[2].bits, 0x3f80) << "1 + 2^-8 is a tie, and 1 is even";
}

TEST(Elements, RefusesOtherTypes) {
  const std::vector<float> values{1.0F};
  std::vector<std::byte> out(8);
  for (const DType type : {DType::kF64, DType::kF8E4M3}) {
    EXPECT_EQ(code_of([&] { store_elements(type, values, out.data()); }),
              ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tributary
