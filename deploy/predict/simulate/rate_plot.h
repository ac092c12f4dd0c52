// Draws the time per output token against the arrival rate.
#pragma once

#include <span>
#include <string>
#include <vector>

namespace tributary {

struct RateSeries {
  std::string name;
  struct Point {
    double rate = 0;  // requests a second
    double p99_ms = 0;
  };
  std::vector<Point> points;  // in any order
};

/// A whole SVG document, the same for the same input. The bound is a dashed line; points far above
/// it are cut off at the upper edge. Throws kInvalidArgument without a point.
[[nodiscard]] std::string rate_plot_svg(std::span<const RateSeries> series, double bound_ms,
                                        const std::string& title);

}  // namespace tributary
