// A simulated pool: balance and spread within what was promised, figures that agree with each
// other.
#include "deploy/app/simulate/simulate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/base/error.h"
#include "tests/core/model/model_files.h"
#include "tests/core/reference/golden_files.h"
#include "tests/sanitized.h"

namespace tributary {
namespace {

using testing::HasSubstr;

struct Promise {
  int workers;
  int running;
  std::int64_t requests;  // of the trace, enough to fill the slots and turn them over
  double most_mean_spread;
  double single_balance;  // of whole sequences on the least loaded worker
};

// Of 64 workers with 1024 sequences the first thousands do: the slots fill with the trace's
// longest prompts, which spread more.
constexpr Promise kPromises[] = {{8, 64, 3000, 3.5, 1.32},
                                 {8, 256, 3000, 2, 1.08},
                                 {64, 256, 3000, 8, 2.36},
                                 {64, 1024, 12031, 3, 1.35}};

SimulateOptions options_of(const Promise& promise, const std::filesystem::path& trace) {
  SimulateOptions options;
  options.trace = trace;
  options.workers = promise.workers;
  options.running = promise.running;
  options.requests = promise.requests;
  return options;
}

class SimulateTrace : public testing::TestWithParam<Promise> {
 protected:
  void SetUp() override {
    if (test::kSanitized && GetParam().workers > 8) {
      GTEST_SKIP() << "the statistics of large pools are left to builds without sanitizers";
    }
    TRIBUTARY_SKIP_WITHOUT(trace_);
  }

  const std::filesystem::path trace_ = test::shared_file("traces/conversation_trace.jsonl");
};

// Nearly: what is cut once stays cut, since nothing is moved once it is placed.
TEST_P(SimulateTrace, StepsAreAsShortAsThoseOfWholeSequences) {
  SimulateOptions options = options_of(GetParam(), trace_);
  options.requests = std::min<std::int64_t>(options.requests, 3000);
  const SimulateReport report = simulate(options);
  EXPECT_EQ(report.requests, options.requests);
  EXPECT_GT(report.full_steps, 500);
  EXPECT_LE(report.mean_spread, GetParam().most_mean_spread);
  options.spread = SpreadPolicy::kSingle;
  const SimulateReport whole = simulate(options);
  EXPECT_LE(report.step_us.mean, 1.08 * whole.step_us.mean);
  EXPECT_LE(report.step_us.p99, 1.08 * whole.step_us.p99);
}

// The measure itself: for a policy that is easily simulated by other means it gives the known
// value.
TEST_P(SimulateTrace, WholeSequencesAreAsUnbalancedAsIsKnown) {
  SimulateOptions options = options_of(GetParam(), trace_);
  options.requests = 3000;
  options.spread = SpreadPolicy::kSingle;
  const SimulateReport report = simulate(options);
  EXPECT_NEAR(report.balance.mean, GetParam().single_balance, 0.05);
  EXPECT_EQ(report.mean_spread, 1);
  EXPECT_EQ(report.mean_roots, 1);
  EXPECT_EQ(report.exchange_bytes, 0);
  EXPECT_EQ(report.busiest_home_roots, 0);
}

INSTANTIATE_TEST_SUITE_P(Conversation, SimulateTrace, testing::ValuesIn(kPromises),
                         [](const auto& info) {
                           return fmt::format("{}workers{}running", info.param.workers,
                                              info.param.running);
                         });

SimulateOptions built_in(int workers, int running, SpreadPolicy spread) {
  SimulateOptions options;
  options.workers = workers;
  options.running = running;
  options.requests = 600;
  options.spread = spread;
  return options;
}

TEST(Simulate, BuiltInWorkloadIsAsFastToo) {
  const SimulateReport report = simulate(built_in(8, 64, SpreadPolicy::kAuto));
  EXPECT_EQ(report.requests, 600);
  EXPECT_GT(report.full_steps, 500);
  EXPECT_LE(report.mean_spread, 3.5);
  const SimulateReport whole = simulate(built_in(8, 64, SpreadPolicy::kSingle));
  EXPECT_LE(report.step_us.mean, 1.08 * whole.step_us.mean);
}

TEST(Simulate, FiguresAgreeWithEachOther) {
  for (const SpreadPolicy spread :
       {SpreadPolicy::kAuto, SpreadPolicy::kSingle, SpreadPolicy::kAll}) {
    SCOPED_TRACE(spread_policy_name(spread));
    SimulateOptions options = built_in(8, 64, spread);
    options.exchange = Exchange::kAllToAll;
    const SimulateReport r = simulate(options);
    EXPECT_LE(r.full_steps, r.steps);
    EXPECT_GE(r.balance.mean, 1);
    EXPECT_LE(r.balance.mean, r.balance.max);
    EXPECT_LE(r.balance.p99, r.balance.max);
    EXPECT_GE(r.home_balance.mean, 1);
    EXPECT_LE(r.mean_spread, r.mean_extents);  // a worker of the spread holds one extent or more
    EXPECT_LE(r.mean_extents, r.mean_roots);   // and an extent is one subtree or more
    EXPECT_LE(r.mean_spread, 8);
    EXPECT_GE(r.placements, 600U);
    EXPECT_GT(r.placements_per_second, 0);
    EXPECT_EQ(r.all_gather_share, 0);
    // DeepSeek-V3: 128 heads, (512 + 1) floats of each.
    EXPECT_DOUBLE_EQ(r.busiest_home_bytes, r.busiest_home_roots * 4 * 128 * 513);
  }
}

TEST(Simulate, OneWorkerHasNothingToExchange) {
  const SimulateReport r = simulate(built_in(1, 16, SpreadPolicy::kAuto));
  EXPECT_EQ(r.balance.max, 1);
  EXPECT_EQ(r.home_balance.max, 1);
  EXPECT_EQ(r.mean_spread, 1);
  EXPECT_EQ(r.exchange_bytes, 0);
}

TEST(Simulate, AllGatherSendsMoreThanAllToAll) {
  SimulateOptions options = built_in(8, 64, SpreadPolicy::kAuto);
  options.exchange = Exchange::kAllToAll;
  const double narrow = simulate(options).exchange_bytes;
  options.exchange = Exchange::kAllGather;
  const SimulateReport wide = simulate(options);
  EXPECT_GT(narrow, 0);
  EXPECT_GT(wide.exchange_bytes, narrow);
  EXPECT_EQ(wide.all_gather_share, 1);
}

/// The report without its times.
std::string decisions(const SimulateReport& report) {
  auto json = nlohmann::json::parse(to_json(report));
  json.erase("placements_per_second");
  json.erase("plan_us");
  return json.dump();
}

TEST(Simulate, DecisionsAreAFunctionOfTheOptions) {
  const SimulateOptions options = built_in(8, 64, SpreadPolicy::kAuto);
  const std::string first = decisions(simulate(options));
  EXPECT_EQ(decisions(simulate(options)), first);
  SimulateOptions other = options;
  other.seed = 2;
  EXPECT_NE(decisions(simulate(other)), first);
}

TEST(Simulate, APoolThatIsFullWaits) {
  SimulateOptions options = built_in(4, 64, SpreadPolicy::kAuto);
  const SimulateReport roomy = simulate(options);
  // 4 workers of 37,449 tokens each: the longest requests take most of them.
  options.kv_gib = 37449.0 * 1152 / 0x1p30;
  const SimulateReport tight = simulate(options);
  EXPECT_EQ(tight.requests, roomy.requests);
  EXPECT_GT(tight.steps, 2 * roomy.steps);
  EXPECT_LT(tight.full_steps, roomy.full_steps);
}

TEST(Simulate, BadOptionsAreRefused) {
  const auto refusal = [](auto change) -> std::string {
    SimulateOptions options = built_in(8, 64, SpreadPolicy::kAuto);
    change(options);
    const auto error = test::error_of([&] { (void)simulate(options); });
    return error ? error->what() : "accepted";
  };
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.shape = "v9"; }), HasSubstr("kimi-k2"));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.leaf_tokens = 96; }), HasSubstr("96"));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.kv_gib = 1e-6; }), HasSubstr("1e-06"));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.kv_gib = 0.001; }), HasSubstr("request "));
  EXPECT_THAT(refusal([](SimulateOptions& o) { o.trace = "absent"; }), HasSubstr("absent"));
}

TEST(SimulateReport, TextShowsTheFigures) {
  SimulateReport r;
  r.requests = 7;
  r.steps = 40;
  r.full_steps = 30;
  r.step_us = {7125, 8250, 9375};
  r.balance = {1.25, 1.5, 1.75};
  r.home_balance = {2.25, 2.5, 2.75};
  r.mean_spread = 3.25;
  r.mean_extents = 4.25;
  r.mean_roots = 5.25;
  r.busiest_home_roots = 6.5;
  r.busiest_home_bytes = 3 * 0x1p20;
  r.exchange_bytes = 8 * 0x1p20;
  r.all_gather_share = 0.125;
  r.placements = 99;
  r.placements_per_second = 123456;
  r.plan_us = 17;
  const std::string text = to_text(r);
  for (const char* figure :
       {"40 (30 ", "7 requests", "7.125 ms", "8.250", "9.375", "1.250", "1.500", "1.750", "2.250",
        "2.500", "3.25 workers", "4.25 extents", "5.25 subtree roots", "6.5 roots", "3.00 MiB",
        "8.00 MiB", "12.5%", "99 (123456 a second)", "17 us"}) {
    EXPECT_THAT(text, HasSubstr(figure));
  }
}

}  // namespace
}  // namespace tributary
