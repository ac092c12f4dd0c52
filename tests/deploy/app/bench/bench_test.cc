// The whole of `tributary bench` on a device, and its file as `tributary plan` takes it.
#include "deploy/app/bench/bench.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/local/run_ranks.h"
#include "deploy/predict/plan/plan_command.h"
#include "deploy/service/protocol/machine_file.h"
#include "tests/deploy/app/bench/device_rank.h"
#include "tests/sanitized.h"

namespace tributary {
namespace {

using test::Carrier;
using test::DeviceRank;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

RowFormat rows_of(Carrier carrier) {
  return carrier == Carrier::kOrdered ? RowFormat::kBF16 : RowFormat::kFp8DsMla;
}

/// The report of two workers.
BenchReport bench_on_device(Carrier carrier) {
  const BenchOptions options{.row_format = rows_of(carrier),
                             .leaf_tokens = 64,
                             .seconds = 0.001,
                             .steps = {{1, 64}, {2, 300}},
                             .json = {}};
  BenchReport report;
  run_ranks(2, [&](Communicator& host) {
    DeviceRank rank(host, carrier);
    const BenchReport own = run_bench(options, rank.device, /*threads=*/1, host);
    EXPECT_TRUE(rank.queue.empty());
    EXPECT_EQ(rank.queue.hazards(), 0);
    EXPECT_GT(rank.device.exchange->traffic()[CollectiveKind::kAllGather], 0U);
    EXPECT_GT(rank.device.exchange->traffic()[CollectiveKind::kAllToAll], 0U);
    EXPECT_EQ(own.text.empty(), host.rank() != 0);
    if (host.rank() == 0) report = own;
  });
  return report;
}

/// A file with a report, removed when the test ends.
class MachineFile {
 public:
  explicit MachineFile(const BenchReport& report)
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("bench_test." + std::to_string(::getpid()) + ".json")) {
    std::ofstream(path_) << report.json;
  }
  ~MachineFile() { std::filesystem::remove(path_); }
  MachineFile(const MachineFile&) = delete;
  MachineFile& operator=(const MachineFile&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

void expect_measured(const nlohmann::json& value) {
  ASSERT_TRUE(value.is_number());
  EXPECT_TRUE(std::isfinite(value.get<double>()) && value.get<double>() > 0) << value;
}

class BenchOnADevice : public ::testing::TestWithParam<Carrier> {};

TEST_P(BenchOnADevice, ReportsItAndWhatPlanTakes) {
  // Measuring the machine's peaks takes minutes there; unit_costs_test.cc covers the rest.
  if (test::kSanitized) GTEST_SKIP();
  const std::string exchange = GetParam() == Carrier::kOrdered ? "deferred" : "staged/threads";
  const BenchReport report = bench_on_device(GetParam());
  const std::string first = report.text.substr(0, report.text.find('\n'));
  EXPECT_THAT(first, StartsWith("cpu/"));  // the name of what computes
  EXPECT_THAT(first, HasSubstr("2 workers (" + exchange + ")"));
  EXPECT_THAT(first, HasSubstr(fmt::format(", {} rows;", row_format_name(rows_of(GetParam())))));
  EXPECT_THAT(report.text, Not(HasSubstr(" thread")));

  const auto json = nlohmann::json::parse(report.json);
  expect_measured(json["peak"]["gflops"]);
  EXPECT_GE(json["attend"].size(), 18U);
  const double row_bytes = GetParam() == Carrier::kOrdered ? 1152 : 656;
  for (const auto& line : json["attend"]) {
    expect_measured(line["gflops"]);
    EXPECT_NEAR(line["gb_s"].get<double>() * line["us"].get<double>() * 1e3,
                line["batch"].get<double>() * line["context"].get<double>() * row_bytes, 1);
  }
  EXPECT_EQ(json["exchange"].size(), 10U);
  for (const auto& line : json["exchange"]) expect_measured(line["gb_s"]);
  ASSERT_EQ(json["steps"].size(), 2U);
  for (const auto& line : json["steps"]) {
    expect_measured(line["us"]);
    expect_measured(line["predicted_us"]);
    expect_measured(line["phase_us"]["attend"]);
  }

  const MachineFile file(report);
  const Machine machine = read_machine(file.path());
  EXPECT_EQ(machine.threads, 0);
  EXPECT_EQ(machine.workers, 2);
  EXPECT_EQ(machine.communicator, exchange);
  PlanOptions options;
  options.machine = file.path();
  options.workers_per_node = 2;
  const PlanReport planned = plan(options);
  ASSERT_FALSE(planned.candidates.empty());
  for (const PlanCandidate& candidate : planned.candidates) {
    EXPECT_TRUE(std::isfinite(candidate.step.step_us) && candidate.step.step_us > 0);
  }
  EXPECT_THAT(to_text(planned, options), HasSubstr(machine.description + " (measured)"));
}

INSTANTIATE_TEST_SUITE_P(Carriers, BenchOnADevice,
                         ::testing::Values(Carrier::kOrdered, Carrier::kStaged),
                         [](const auto& carrier) {
                           return carrier.param == Carrier::kOrdered ? "Ordered" : "Staged";
                         });

}  // namespace
}  // namespace tributary
