// Bounds of what rows of FP8 cost attention: one and a half times what was measured when the
// formats were chosen. `tributary verify --rows FORMAT` prints the errors.
#include "core/reference/row_format_error.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/model/row_format.h"

namespace tributary {
namespace {

struct Bound {
  double deviation, outliers, o, worst_o, lse;
};

void expect_errors(RowFormat format, const std::vector<Bound>& bounds) {
  for (const Bound& bound : bounds) {
    SCOPED_TRACE(testing::Message() << "scores of deviation " << bound.deviation);
    const RowFormatError error = row_format_error(format, bound.deviation, bound.outliers);
    EXPECT_LE(error.o, bound.o);
    EXPECT_LE(error.worst_o, bound.worst_o);
    EXPECT_LE(error.lse, bound.lse);
    EXPECT_GT(error.o, 0.001) << "rows were not rounded";
  }
}

TEST(RowFormatErrors, OfAttentionOverGaussianLatents) {
  expect_errors(RowFormat::kFp8DsMla, {{1, 1, 0.033, 0.05, 0.003},
                                       {2, 1, 0.056, 0.09, 0.009},
                                       {8, 1, 0.098, 0.30, 0.26},
                                       {1, 20, 0.033, 0.05, 0.003}});
}

TEST(RowFormatErrors, OfOneScale) {
  expect_errors(
      RowFormat::kFp8,
      {{1, 1, 0.041, 0.06, 0.0045}, {2, 1, 0.087, 0.13, 0.024}, {8, 1, 0.18, 0.39, 0.48}});
}

TEST(RowFormatErrors, OfRowsThatLoseNothing) {
  const RowFormatError error = row_format_error(RowFormat::kBF16, 2);
  EXPECT_EQ(error.o, 0);
  EXPECT_EQ(error.worst_o, 0);
  EXPECT_EQ(error.lse, 0);
}

}  // namespace
}  // namespace tributary
