// Fits constants of a sum of products to measurements.
#pragma once

#include <span>
#include <vector>

namespace tributary::bench {

/// `measured` is approximately the sum of coefficient i * units[i].
struct Observation {
  std::vector<double> units;
  double measured = 0;  // > 0
};

/// Coefficients, none below 0, with the least squares of relative errors: a short time counts as
/// much as a long one. Units that never occur get 0. All observations have the same number of
/// units.
[[nodiscard]] std::vector<double> fit(std::span<const Observation> observations);

}  // namespace tributary::bench
