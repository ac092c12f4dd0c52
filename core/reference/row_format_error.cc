#include "core/reference/row_format_error.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

#include "core/reference/error_measures.h"

namespace tributary {
namespace {

constexpr std::size_t kRows = 4096, kHeads = 16, kRank = 512, kWidth = 576;
constexpr std::size_t kOutliers = 8;

struct States {
  std::vector<double> o;  // [heads][kRank]
  std::vector<double> lse;
};

double score(const std::vector<double>& query, const float* row) {
  double sum = 0;
  for (std::size_t i = 0; i < kWidth; ++i) sum += query[i] * row[i];
  return sum;
}

/// Adds the state of one head.
void attend(const std::vector<float>& rows, const std::vector<double>& query, States& states) {
  std::vector<double> scores(kRows);
  for (std::size_t row = 0; row < kRows; ++row) {
    scores[row] = score(query, rows.data() + row * kWidth);
  }
  const double most = *std::ranges::max_element(scores);
  std::vector<double> o(kRank);
  double sum = 0;
  for (std::size_t row = 0; row < kRows; ++row) {
    const double weight = std::exp(scores[row] - most);
    sum += weight;
    for (std::size_t i = 0; i < kRank; ++i) o[i] += weight * rows[row * kWidth + i];
  }
  for (const double value : o) states.o.push_back(value / sum);
  states.lse.push_back(most + std::log(sum));
}

}  // namespace

RowFormatError row_format_error(RowFormat format, double deviation, double outliers) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> rows(kRows * kWidth);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t column = i % kWidth;
    rows[i] = normal(random) * (column >= kRank ? 4.0F : 1.0F);
    if (column < kOutliers) rows[i] *= static_cast<float>(outliers);
  }
  RowLayout{RowFormat::kBF16, kRank, kWidth - kRank}.round(rows);
  std::vector<float> stored = rows;
  RowLayout{format, kRank, kWidth - kRank}.round(stored);
  States exact;
  States got;
  for (std::size_t head = 0; head < kHeads; ++head) {
    std::vector<double> query(kWidth);
    for (double& value : query) value = normal(random);
    double squares = 0;
    for (std::size_t row = 0; row < kRows; ++row) {
      squares += std::pow(score(query, rows.data() + row * kWidth), 2);
    }
    for (double& value : query) value *= deviation / std::sqrt(squares / kRows);
    attend(rows, query, exact);
    attend(stored, query, got);
  }
  const TensorError o = measure_error(got.o, exact.o, kRank);
  return {.o = o.relative_frobenius,
          .worst_o = o.worst_row,
          .lse = measure_error(got.lse, exact.lse, kHeads).max_absolute};
}

}  // namespace tributary
