// The drawing has its lines, points and words, and its numbers lie inside it.
#include "deploy/predict/simulate/rate_plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

using testing::HasSubstr;

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

TEST(RatePlot, HasALineForEachSeriesAndAPointForEachRun) {
  const std::vector<RateSeries> series = {{"single", {{1, 10}, {4, 60}, {2, 20}}},
                                          {"auto", {{1, 8}, {3, 1000}}}};
  const std::string svg = rate_plot_svg(series, 50, "8 workers & <more>");
  EXPECT_EQ(svg, rate_plot_svg(series, 50, "8 workers & <more>"));
  EXPECT_EQ(count(svg, "<polyline"), 2U);
  EXPECT_EQ(count(svg, "<circle"), 5U);
  EXPECT_EQ(count(svg, "stroke-dasharray"), 1U);
  EXPECT_THAT(svg, HasSubstr("8 workers &amp; &lt;more&gt;"));
  EXPECT_THAT(svg, HasSubstr(">single<"));
  EXPECT_THAT(svg, HasSubstr("requests a second"));
  const std::regex circle(R"(cx="([0-9.]+)\" cy=\"([0-9.]+)\")");
  for (std::sregex_iterator it(svg.begin(), svg.end(), circle), end; it != end; ++it) {
    EXPECT_LE(std::stod((*it)[1]), 720);
    EXPECT_LE(std::stod((*it)[2]), 440);
  }
}

TEST(RatePlot, WithoutAPointIsRefused) {
  EXPECT_TRUE(test::error_of([] { (void)rate_plot_svg({}, 50, "empty"); }));
}

}  // namespace
}  // namespace tributary
