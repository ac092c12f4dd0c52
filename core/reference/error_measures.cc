// Norms of differences, once NaN and infinity have been compared.
#include "core/reference/error_measures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "core/base/error.h"

namespace tributary {
namespace {

/// Equal for two numbers exactly when both are finite, or both are the same infinity, or both NaN.
int kind(double value) {
  if (std::isnan(value)) return 2;
  if (std::isinf(value)) return value > 0 ? 1 : -1;
  return 0;
}

double ratio(double difference, double expected) {
  if (difference == 0) return 0;
  return std::sqrt(difference) / std::sqrt(expected);  // +inf over an expected norm of 0
}

template <typename T>
TensorError measure(std::span<const T> got, std::span<const double> expected,
                    std::int64_t row_width) {
  if (got.size() != expected.size() || row_width < 1 ||
      got.size() % static_cast<std::size_t>(row_width) != 0) {
    fail(ErrorCode::kInvalidArgument, "error measure: {} elements against {}, in rows of {}",
         got.size(), expected.size(), row_width);
  }
  TensorError error;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (kind(static_cast<double>(got[i])) != kind(expected[i])) {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      error.relative_frobenius = kInfinity;
      error.worst_row = kInfinity;
      error.max_absolute = kInfinity;
      error.worst_row_index = static_cast<std::int64_t>(i) / row_width;
      error.nonfinite_mismatch = static_cast<std::int64_t>(i);
      return error;
    }
  }
  const auto width = static_cast<std::size_t>(row_width);
  double difference = 0;
  double norm = 0;
  for (std::size_t begin = 0; begin < got.size(); begin += width) {
    double row_difference = 0;
    double row_norm = 0;
    for (std::size_t i = begin; i < begin + width; ++i) {
      if (!std::isfinite(expected[i])) continue;
      const double delta = static_cast<double>(got[i]) - expected[i];
      row_difference += delta * delta;
      row_norm += expected[i] * expected[i];
      error.max_absolute = std::max(error.max_absolute, std::abs(delta));
    }
    const double row = ratio(row_difference, row_norm);
    if (row > error.worst_row) {
      error.worst_row = row;
      error.worst_row_index = static_cast<std::int64_t>(begin / width);
    }
    difference += row_difference;
    norm += row_norm;
  }
  error.relative_frobenius = ratio(difference, norm);
  return error;
}

}  // namespace

std::string TensorError::text() const {
  if (nonfinite_mismatch) {
    return fmt::format("NaN or infinity on one side only at element {} (row {})",
                       *nonfinite_mismatch, worst_row_index);
  }
  return fmt::format("{:.2g} (row {}: {:.2g}, absolute {:.2g})", relative_frobenius,
                     worst_row_index, worst_row, max_absolute);
}

TensorError measure_error(std::span<const float> got, std::span<const double> expected,
                          std::int64_t row_width) {
  return measure(got, expected, row_width);
}

TensorError measure_error(std::span<const double> got, std::span<const double> expected,
                          std::int64_t row_width) {
  return measure(got, expected, row_width);
}

}  // namespace tributary
