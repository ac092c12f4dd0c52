// The subcommand: policies side by side, the search, its report, and the conversation trace.
#include "deploy/predict/simulate/simulate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "tests/core/model/model_files.h"
#include "tests/core/reference/golden_files.h"

namespace tributary {
namespace {

using testing::HasSubstr;

SimulateOptions small_options() {
  SimulateOptions options;
  options.requests = 200;
  options.workers = 4;
  options.workers_per_node = 2;
  options.shape = "deepseek-v2-lite";
  options.kv_gib = 40;
  options.rates.values = {20};
  options.warmup_s = 4;
  options.measure_s = 6;
  options.check_every = 200;
  return options;
}

TEST(Simulate, PoliciesStandSideBySide) {
  const SimulateReport report = simulate(small_options());
  ASSERT_EQ(report.points.size(), 3U);
  EXPECT_EQ(report.points[0].spread, SpreadPolicy::kSingle);
  EXPECT_EQ(report.points[1].spread, SpreadPolicy::kAll);
  EXPECT_EQ(report.points[2].spread, SpreadPolicy::kAuto);
  for (const SimulatedPoint& point : report.points) {
    EXPECT_EQ(point.result.requests.arrived, report.points[0].result.requests.arrived);
    EXPECT_GT(point.result.checks, 0);
    EXPECT_LT(point.result.worst_check, 1e-9);
    EXPECT_TRUE(point.result.bytes_agree);
  }
  EXPECT_EQ(report.points[0].result.bytes_per_token, LinkBytes{});
  EXPECT_EQ(report.points[0].result.mean_spread, 1);
  EXPECT_GT(report.points[1].result.bytes_per_token.network, 0);
  EXPECT_GT(report.points[1].result.mean_spread, 2);
}

TEST(Simulate, ASearchEndsBetweenARateThatMeetsTheBoundsAndOneThatDoesNot) {
  SimulateOptions options = small_options();
  options.rates = {};
  options.search = true;
  options.spread = {SpreadPolicy::kSingle};
  options.kv_gib = 2;
  options.tpot_ms = 5;
  const SimulateReport report = simulate(options);
  ASSERT_EQ(report.searches.size(), 1U);
  const SearchResult& search = report.searches.front();
  EXPECT_GT(search.rate.holds, 0);
  EXPECT_LE(search.rate.fails / search.rate.holds, 1.02);
  EXPECT_NE(search.binds, "nothing");
  for (const SimulatedPoint& point : report.points) {
    const bool met = meets_bounds(point.result, 5, 1000);
    EXPECT_EQ(met, point.rate <= search.rate.holds) << point.rate;
  }
  EXPECT_THAT(to_text(report), HasSubstr("highest rate that meets the bounds"));
  EXPECT_THAT(to_svg(report), HasSubstr("single"));
}

/// The report without what the machine took.
std::string decisions(const SimulateOptions& options) {
  auto json = nlohmann::json::parse(to_json(simulate(options)));
  json.erase("effort");
  return json.dump();
}

TEST(Simulate, ReportsAreAFunctionOfTheOptions) {
  SimulateOptions options = small_options();
  const std::string first = decisions(options);
  EXPECT_EQ(decisions(options), first);
  options.seed = 2;
  EXPECT_NE(decisions(options), first);
}

TEST(Simulate, AFixedNumberInFlightHasNoRate) {
  SimulateOptions options = small_options();
  options.running = 16;
  EXPECT_TRUE(test::error_of([&] { (void)simulate(options); }));
  options.rates = {};
  const SimulateReport report = simulate(options);
  EXPECT_NEAR(report.points.front().result.running, 16, 1);
}

TEST(Simulate, BadOptionsAreRefused) {
  const auto refusal = [](auto change) -> std::string {
    SimulateOptions options = small_options();
    change(options);
    const auto error = test::error_of([&] { (void)simulate(options); });
    return error ? error->what() : "accepted";
  };
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.shape = "v9"; }), HasSubstr("kimi-k2"));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.costs = "h9"; }), HasSubstr("h200"));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.costs = std::string(300, 'h'); }),
              HasSubstr("h200"));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.costs = "absent.json"; }),
              HasSubstr("absent.json"));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.leaf_tokens = 96; }), HasSubstr("96"));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.kv_gib = 1e-6; }), HasSubstr("1e-06"));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.trace = "absent"; }), HasSubstr("absent"));
}

// One hour of a chat service on eight workers: at its own pace all policies keep the bound, and
// whole sequences exchange nothing.
TEST(Simulate, TheConversationTraceRunsAtItsOwnPace) {
  const auto trace = test::shared_file("traces/conversation_trace.jsonl");
  TRIBUTARY_SKIP_WITHOUT(trace);
  SimulateOptions options;
  options.trace = trace;
  options.requests = 3000;
  options.spread = {SpreadPolicy::kSingle, SpreadPolicy::kAuto};
  options.check_every = 2000;
  const SimulateReport report = simulate(options);
  for (const SimulatedPoint& point : report.points) {
    EXPECT_TRUE(meets_bounds(point.result, 50, 1000));
    EXPECT_EQ(point.result.requests.too_large, 0);
    EXPECT_LT(point.result.worst_check, 1e-9);
    EXPECT_TRUE(point.result.bytes_agree);
  }
}

/// As many rows need no push as a store of blocks alone counts (blocks.py beside the trace: 64 at
/// once, and 4M idle rows kept), though blocks are used only where they lie, on eight workers.
TEST(Simulate, APoolFindsAsManyRowsOfPromptsAsItsMemoryLets) {
  const auto trace = test::shared_file("traces/conversation_trace.jsonl");
  TRIBUTARY_SKIP_WITHOUT(trace);
  SimulateOptions options;
  options.trace = trace;
  options.running = 64;
  options.kv_gib = 4.85e6 * 61 * 1152 / 0x1p30 / 8;  // its own rows and those
  options.spread = {SpreadPolicy::kAuto};
  options.check_every = 0;
  options.warmup_s = 0;
  options.measure_s = 495;  // about all of its 12,031 requests
  const SimulateReport report = simulate(options);
  const TierResult& result = report.points.front().result;
  EXPECT_NEAR(static_cast<double>(result.requests.arrived), 12'031, 500);
  EXPECT_NEAR(
      static_cast<double>(result.present_tokens) / static_cast<double>(result.prompt_tokens),
      0.2147, 0.02);
}

}  // namespace
}  // namespace tributary
