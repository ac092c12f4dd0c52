#include "deploy/app/bench/least_squares.h"

#include <cmath>
#include <cstddef>
#include <utility>

namespace tributary::bench {
namespace {

/// Solves the symmetric system in place by elimination with pivots; columns without weight get 0.
std::vector<double> solve(std::vector<std::vector<double>> matrix, std::vector<double> right) {
  const std::size_t n = right.size();
  std::vector<double> x(n, 0);
  std::vector<bool> empty(n, false);
  for (std::size_t column = 0; column < n; ++column) {
    std::size_t pivot = column;
    for (std::size_t row = column; row < n; ++row) {
      if (std::abs(matrix[row][column]) > std::abs(matrix[pivot][column])) pivot = row;
    }
    std::swap(matrix[column], matrix[pivot]);
    std::swap(right[column], right[pivot]);
    // Columns are scaled to a norm of 1: anything smaller is a rounding error.
    empty[column] = std::abs(matrix[column][column]) < 1e-12;
    if (empty[column]) continue;
    for (std::size_t row = column + 1; row < n; ++row) {
      const double factor = matrix[row][column] / matrix[column][column];
      for (std::size_t k = column; k < n; ++k) matrix[row][k] -= factor * matrix[column][k];
      right[row] -= factor * right[column];
    }
  }
  for (std::size_t i = n; i-- > 0;) {
    if (empty[i]) continue;
    double sum = right[i];
    for (std::size_t k = i + 1; k < n; ++k) sum -= matrix[i][k] * x[k];
    x[i] = sum / matrix[i][i];
  }
  return x;
}

/// Fits the columns in `used`; the rest are 0.
std::vector<double> fit_columns(std::span<const Observation> observations,
                                const std::vector<std::size_t>& used, std::size_t columns) {
  // Units differ by many orders of magnitude: each column is scaled to a norm of 1.
  std::vector<double> norm(used.size(), 0);
  for (const Observation& o : observations) {
    for (std::size_t i = 0; i < used.size(); ++i) {
      norm[i] += std::pow(o.units[used[i]] / o.measured, 2);
    }
  }
  for (double& value : norm) value = value > 0 ? std::sqrt(value) : 1;
  std::vector<std::vector<double>> matrix(used.size(), std::vector<double>(used.size(), 0));
  std::vector<double> right(used.size(), 0);
  for (const Observation& o : observations) {
    for (std::size_t i = 0; i < used.size(); ++i) {
      const double a = o.units[used[i]] / o.measured / norm[i];
      right[i] += a;
      for (std::size_t k = 0; k < used.size(); ++k) {
        matrix[i][k] += a * o.units[used[k]] / o.measured / norm[k];
      }
    }
  }
  const std::vector<double> scaled = solve(std::move(matrix), std::move(right));
  std::vector<double> all(columns, 0);
  for (std::size_t i = 0; i < used.size(); ++i) all[used[i]] = scaled[i] / norm[i];
  return all;
}

}  // namespace

std::vector<double> fit(std::span<const Observation> observations) {
  if (observations.empty()) return {};
  const std::size_t columns = observations.front().units.size();
  std::vector<std::size_t> used;
  for (std::size_t i = 0; i < columns; ++i) used.push_back(i);
  for (;;) {
    std::vector<double> found = fit_columns(observations, used, columns);
    // A cost below 0 does not exist: drop the most negative contribution and solve again.
    auto worst = used.end();
    double least = 0;
    for (auto i = used.begin(); i != used.end(); ++i) {
      double share = 0;
      for (const Observation& o : observations) share += found[*i] * o.units[*i] / o.measured;
      if (share < least) {
        least = share;
        worst = i;
      }
    }
    if (worst == used.end()) return found;
    used.erase(worst);
  }
}

}  // namespace tributary::bench
