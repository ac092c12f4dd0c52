// The measures on tensors small enough to compute by hand.
#include "core/reference/error_measures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

TEST(ErrorMeasures, EqualTensorsHaveNoError) {
  const std::vector<double> values = {1, -2, 0, 4};
  const TensorError error = measure_error(values, values, 2);
  EXPECT_EQ(error.relative_frobenius, 0);
  EXPECT_EQ(error.worst_row, 0);
  EXPECT_EQ(error.max_absolute, 0);
  EXPECT_FALSE(error.nonfinite_mismatch);
}

TEST(ErrorMeasures, NormsOfAKnownDifference) {
  // Rows (3, 4), (0, 12) and differences (0, 0.5), (6, 0): the second row is off by half.
  const std::vector<double> expected = {3, 4, 0, 12};
  const std::vector<float> got = {3, 4.5F, 6, 12};
  const TensorError error = measure_error(got, expected, 2);
  EXPECT_DOUBLE_EQ(error.relative_frobenius, std::sqrt(36.25) / 13);
  EXPECT_DOUBLE_EQ(error.worst_row, 0.5);
  EXPECT_EQ(error.worst_row_index, 1);
  EXPECT_EQ(error.max_absolute, 6);
}

TEST(ErrorMeasures, ARowCanBeWorseThanTheWhole) {
  const std::vector<double> expected = {1000, 0.001};
  const std::vector<double> got = {1000, 0.002};
  const TensorError error = measure_error(got, expected, 1);
  EXPECT_LT(error.relative_frobenius, 1e-5);
  EXPECT_DOUBLE_EQ(error.worst_row, 1);
}

TEST(ErrorMeasures, ExpectedZeroIsExactOrInfinitelyWrong) {
  const std::vector<double> zero = {0, 0};
  EXPECT_EQ(measure_error(zero, zero, 2).relative_frobenius, 0);
  const std::vector<double> tiny = {0, 1e-30};
  EXPECT_EQ(measure_error(tiny, zero, 2).relative_frobenius, kInfinity);
  EXPECT_EQ(measure_error(tiny, zero, 2).worst_row, kInfinity);
}

TEST(ErrorMeasures, PositionsOfNonFiniteValuesComeFirst) {
  const std::vector<double> expected = {-kInfinity, kNaN, kInfinity, 1};
  EXPECT_EQ(measure_error(expected, expected, 4).relative_frobenius, 0);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    for (const double wrong : {kNaN, kInfinity, -kInfinity, 7.0}) {
      std::vector<double> got = expected;
      if (std::isnan(got[i]) ? std::isnan(wrong) : got[i] == wrong) continue;
      got[i] = wrong;
      const TensorError error = measure_error(got, expected, 2);
      if (i == 3 && wrong == 7) {
        EXPECT_FALSE(error.nonfinite_mismatch);
        EXPECT_EQ(error.max_absolute, 6);
        continue;
      }
      ASSERT_TRUE(error.nonfinite_mismatch) << "element " << i << " is " << wrong;
      EXPECT_EQ(*error.nonfinite_mismatch, static_cast<std::int64_t>(i));
      EXPECT_EQ(error.worst_row_index, static_cast<std::int64_t>(i / 2));
      EXPECT_EQ(error.relative_frobenius, kInfinity);
      EXPECT_EQ(error.max_absolute, kInfinity);
      EXPECT_THAT(error.text(), testing::HasSubstr("element " + std::to_string(i)));
    }
  }
}

TEST(ErrorMeasures, EmptyTensorsAreEqual) {
  EXPECT_EQ(measure_error(std::span<const double>(), {}, 3).relative_frobenius, 0);
}

TEST(ErrorMeasures, SizesMustMatch) {
  const std::vector<double> three(3);
  const std::vector<double> four(4);
  constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
  TRIBUTARY_EXPECT_ERROR(measure_error(three, four, 1), kBad, "3 elements against 4");
  TRIBUTARY_EXPECT_ERROR(measure_error(four, four, 3), kBad, "in rows of 3");
  TRIBUTARY_EXPECT_ERROR(measure_error(four, four, 0), kBad, "in rows of 0");
}

}  // namespace
}  // namespace tributary
