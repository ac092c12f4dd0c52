#include "deploy/predict/simulate/rate_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "core/base/error.h"

namespace tributary {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 440;
constexpr double kLeft = 64;
constexpr double kRight = 16;
constexpr double kTop = 40;
constexpr double kBottom = 52;
// Told apart by people who do not see all colours (Okabe and Ito's palette).
constexpr std::array<std::string_view, 4> kColours = {"#d55e00", "#0072b2", "#009e73", "#cc79a7"};

/// 1, 2 or 5 times a power of ten: about `ticks` of them up to `most`.
double tick_distance(double most, int ticks) {
  const double raw = most / ticks;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) return factor * power;
  }
  return 10 * power;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

class Plot {
 public:
  Plot(double most_rate, double most_ms) : most_rate_(most_rate), most_ms_(most_ms) {}

  [[nodiscard]] double x(double rate) const {
    return kLeft + rate / most_rate_ * (kWidth - kLeft - kRight);
  }
  [[nodiscard]] double y(double ms) const {
    return kHeight - kBottom - std::min(ms / most_ms_, 1.0) * (kHeight - kTop - kBottom);
  }

  void line(double x1, double y1, double x2, double y2, std::string_view style) {
    body_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1,
                         y1, x2, y2, style);
  }
  void text(double x, double y, std::string_view anchor, std::string_view words,
            std::string_view style = "") {
    body_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                         anchor, style, escaped(words));
  }

  void axes() {
    constexpr std::string_view kGrid = "stroke=\"#ddd\"";
    const double rate_step = tick_distance(most_rate_, 8);
    for (int i = 0; i * rate_step <= most_rate_; ++i) {
      const double at = x(i * rate_step);
      line(at, kTop, at, kHeight - kBottom, kGrid);
      text(at, kHeight - kBottom + 18, "middle", fmt::format("{:g}", i * rate_step));
    }
    const double ms_step = tick_distance(most_ms_, 6);
    for (int i = 0; i * ms_step <= most_ms_; ++i) {
      const double at = y(i * ms_step);
      line(kLeft, at, kWidth - kRight, at, kGrid);
      text(kLeft - 8, at + 4, "end", fmt::format("{:g}", i * ms_step));
    }
    text((kLeft + kWidth - kRight) / 2, kHeight - 14, "middle", "requests a second");
    const double middle = (kTop + kHeight - kBottom) / 2;
    text(16, middle, "middle", "p99 time per output token, ms",
         fmt::format(" transform=\"rotate(-90 16 {:.1f})\"", middle));
  }

  void series(const RateSeries& series, std::string_view colour, int row) {
    std::vector<RateSeries::Point> points = series.points;
    std::ranges::sort(points, {}, &RateSeries::Point::rate);
    std::string path;
    for (const auto& p : points) {
      path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x(p.rate), y(p.p99_ms));
      body_ += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n",
                           x(p.rate), y(p.p99_ms), colour);
    }
    body_ += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, colour);
    const double at = kTop + 14 + 18 * row;
    line(kLeft + 12, at, kLeft + 36, at, fmt::format(R"(stroke="{}" stroke-width="2")", colour));
    text(kLeft + 42, at + 4, "start", series.name);
  }

  [[nodiscard]] std::string document() const {
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" "
        "viewBox=\"0 0 {0:g} {1:g}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{2}</svg>\n",
        kWidth, kHeight, body_);
  }

 private:
  double most_rate_, most_ms_;
  std::string body_;
};

}  // namespace

std::string rate_plot_svg(std::span<const RateSeries> series, double bound_ms,
                          const std::string& title) {
  double most_rate = 0;
  double most_ms = 0;
  for (const RateSeries& s : series) {
    for (const auto& p : s.points) {
      most_rate = std::max(most_rate, p.rate);
      most_ms = std::max(most_ms, p.p99_ms);
    }
  }
  if (!(most_rate > 0)) fail(ErrorCode::kInvalidArgument, "a plot of no point");
  // Points far above the bound would press everything else to the floor.
  constexpr double kAboveBound = 2;
  most_ms = bound_ms > 0 ? kAboveBound * bound_ms : std::max(most_ms, 1e-3);
  Plot plot(1.02 * most_rate, most_ms);
  plot.axes();
  if (bound_ms > 0) {
    plot.line(kLeft, plot.y(bound_ms), kWidth - kRight, plot.y(bound_ms),
              R"(stroke="#333" stroke-dasharray="6 4")");
  }
  for (std::size_t i = 0; i < series.size(); ++i) {
    plot.series(series[i], kColours.at(i % kColours.size()), static_cast<int>(i));
  }
  plot.text(kWidth / 2, 22, "middle", title, R"( font-size="14")");
  return plot.document();
}

}  // namespace tributary
