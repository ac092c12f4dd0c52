// Finds the highest rate at which a condition still holds.
#pragma once

#include <functional>

namespace tributary {

/// Neighbouring rates: the condition held at one and failed at a higher one.
struct RateBracket {
  double holds = 0;  // 0: at none that was tried
  double fails = 0;  // 0: at none that was tried
};

/// Searches by doubling or halving from `start` > 0 and then by bisection, until fails / holds is
/// `precision` > 1 or less. Stops after 2^20 times or 2^-20 of `start`. If `holds` is not
/// monotonic, the bracket is one of several.
[[nodiscard]] RateBracket bracket_rate(double start, double precision,
                                       const std::function<bool(double)>& holds);

}  // namespace tributary
