// The highest rate at which something still holds.
#pragma once

#include <functional>

namespace tributary {

/// Neighbouring rates, one at which it held and a higher one at which it did not.
struct RateBracket {
  double holds = 0;  // 0: at none that was tried
  double fails = 0;  // 0: at none that was tried
};

/// By doubling or halving from `start` > 0 and then by bisection, until fails / holds is
/// `precision` > 1 or less. Stops after 2^20 times or 2^-20 of `start`. Where `holds` is not
/// monotonic, the bracket is one of several.
[[nodiscard]] RateBracket bracket_rate(double start, double precision,
                                       const std::function<bool(double)>& holds);

}  // namespace tributary
