// Measures how far a computed tensor lies from the expected one. Positions of NaN and infinity are
// compared first: a norm would hide them or be hidden by them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace tributary {

struct TensorError {
  double relative_frobenius = 0;  // ||got - expected|| / ||expected|| over the whole tensor
  double worst_row = 0;           // the largest of that over the rows
  double max_absolute = 0;        // the largest |got - expected|
  std::int64_t worst_row_index = 0;
  /// The first element where one side is NaN, +inf or -inf and the other is not the same; all three
  /// measures are +inf then.
  std::optional<std::int64_t> nonfinite_mismatch;

  /// `3.1e-07 (row 8: 9.0e-07, absolute 1.2e-06)`, or the mismatch.
  [[nodiscard]] std::string text() const;
};

/// Rows are `row_width` consecutive elements. Elements that are not finite and agree count as
/// equal. An expected norm of 0 gives 0 if the difference is 0 too, and +inf otherwise. Throws
/// kInvalidArgument when the sizes differ or are not whole rows.
[[nodiscard]] TensorError measure_error(std::span<const float> got,
                                        std::span<const double> expected, std::int64_t row_width);
[[nodiscard]] TensorError measure_error(std::span<const double> got,
                                        std::span<const double> expected, std::int64_t row_width);

}  // namespace tributary
