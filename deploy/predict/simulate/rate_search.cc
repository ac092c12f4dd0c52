#include "deploy/predict/simulate/rate_search.h"

#include <cmath>

namespace tributary {

RateBracket bracket_rate(double start, double precision, const std::function<bool(double)>& holds) {
  constexpr double kFarthest = 0x1p20;
  RateBracket bracket;
  for (double rate = start; bracket.holds == 0 || bracket.fails == 0;) {
    if (holds(rate)) {
      bracket.holds = rate;
      if (rate >= start * kFarthest) return bracket;
      rate *= 2;
    } else {
      bracket.fails = rate;
      if (rate <= start / kFarthest) return bracket;
      rate /= 2;
    }
  }
  while (bracket.fails > bracket.holds * precision) {
    const double rate = std::sqrt(bracket.holds * bracket.fails);
    (holds(rate) ? bracket.holds : bracket.fails) = rate;
  }
  return bracket;
}

}  // namespace tributary
