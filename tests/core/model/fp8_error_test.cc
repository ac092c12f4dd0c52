// What storing rows in FP8 costs attention, beside the bf16 rows that they were made of: a property
// of the format alone, in float64, for latents drawn at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <string>
#include <vector>

#include "core/model/row_format.h"

namespace tributary {
namespace {

constexpr std::size_t kRows = 4096, kHeads = 16, kRank = 512, kWidth = 576;

struct State {
  std::vector<double> o;
  double lse = 0;
};

State attend(const std::vector<float>& rows, const std::vector<double>& query) {
  std::vector<double> scores(kRows);
  for (std::size_t row = 0; row < kRows; ++row) {
    for (std::size_t i = 0; i < kWidth; ++i) scores[row] += query[i] * rows[row * kWidth + i];
  }
  const double most = *std::ranges::max_element(scores);
  State state{.o = std::vector<double>(kRank)};
  double sum = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    const double weight = std::exp(scores[row] - most);
    sum += weight;
    for (std::size_t i = 0; i < kRank; ++i) state.o[i] += weight * rows[row * kWidth + i];
  }
  for (double& value : state.o) value /= sum;
  state.lse = most + std::log(sum);
  return state;
}

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

struct Errors {
  double o = 0, worst_o = 0, lse = 0;  // of all heads, of the worst one; the largest
};

/// Scores have `deviation` over the rows; k_pe is four times as large as the latents.
Errors errors_of(RowFormat format, double deviation, double outliers) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> rows(kRows * kWidth);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t column = i % kWidth;
    rows[i] = normal(random) * (column >= kRank ? 4.0F : 1.0F);
    if (column < 8) rows[i] *= static_cast<float>(outliers);
  }
  const RowLayout plain{RowFormat::kBF16, kRank, kWidth - kRank};
  plain.round(rows);
  std::vector<float> stored = rows;
  RowLayout{format, kRank, kWidth - kRank}.round(stored);
  Errors errors;
  double difference = 0;
  double size = 0;
  for (std::size_t head = 0; head < kHeads; ++head) {
    std::vector<double> query(kWidth);
    for (double& value : query) value = normal(random);
    double squares = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      double score = 0;
      for (std::size_t i = 0; i < kWidth; ++i) score += query[i] * rows[row * kWidth + i];
      squares += score * score;
    }
    for (double& value : query) value *= deviation / std::sqrt(squares / kRows);
    const State exact = attend(rows, query);
    const State coded = attend(stored, query);
    std::vector<double> off(kRank);
    for (std::size_t i = 0; i < kRank; ++i) off[i] = coded.o[i] - exact.o[i];
    difference += norm(off) * norm(off);
    size += norm(exact.o) * norm(exact.o);
    errors.worst_o = std::max(errors.worst_o, norm(off) / norm(exact.o));
    errors.lse = std::max(errors.lse, std::abs(coded.lse - exact.lse));
  }
  errors.o = std::sqrt(difference / size);
  return errors;
}

struct Bound {
  double deviation, outliers, o, worst_o, lse;
};

void expect_errors(RowFormat format, const std::vector<Bound>& bounds) {
  for (const Bound& bound : bounds) {
    const Errors errors = errors_of(format, bound.deviation, bound.outliers);
    const std::string where = "scores of deviation " + std::to_string(bound.deviation) + ": o " +
                              std::to_string(errors.o) + ", worst head " +
                              std::to_string(errors.worst_o) + ", lse " +
                              std::to_string(errors.lse);
    testing::Test::RecordProperty("errors_" + std::to_string(static_cast<int>(bound.deviation)) +
                                      (bound.outliers > 1 ? "_outliers" : ""),
                                  where);
    EXPECT_LE(errors.o, bound.o) << where;
    EXPECT_LE(errors.worst_o, bound.worst_o) << where;
    EXPECT_LE(errors.lse, bound.lse) << where;
    EXPECT_GT(errors.o, 0.001) << where << ": rows were not rounded";
  }
}

// Bounds: one and a half times what was measured when the formats were chosen.

TEST(Fp8Error, OfAttentionOverGaussianLatents) {
  expect_errors(RowFormat::kFp8DsMla, {{1, 1, 0.033, 0.05, 0.003},
                                       {2, 1, 0.056, 0.09, 0.009},
                                       {8, 1, 0.098, 0.30, 0.26},
                                       {1, 20, 0.033, 0.05, 0.003}});
}

TEST(Fp8Error, OfOneScale) {
  expect_errors(
      RowFormat::kFp8,
      {{1, 1, 0.041, 0.06, 0.0045}, {2, 1, 0.087, 0.13, 0.024}, {8, 1, 0.18, 0.39, 0.48}});
}

}  // namespace
}  // namespace tributary
