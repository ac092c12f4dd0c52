#include "deploy/service/control/exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "core/interface/manual_clock.h"
#include "tests/deploy/service/protocol/pool_samples.h"

namespace tributary {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const Time kExporterStart{std::chrono::hours(1)};

class ExporterTest : public ::testing::Test {
 protected:
  void add_pool(const std::string& name, int workers = 2) {
    auto about = std::get<RegisterPool>(samples_from_pool()[0]);
    about.name = name;
    about.draining = false;
    about.last_incarnation = 0;
    about.sequences.clear();
    about.workers.clear();
    Heartbeat beat;
    beat.metrics = sample_metrics();
    for (int rank = 0; rank < workers; ++rank) {
      about.workers.push_back({rank, "host", "address", "cpu"});
      beat.workers.push_back({rank, 10, 20, 6, 3, rank == 1 ? 2000 : 250, 700, 0.5});
    }
    registry_.register_pool(about, kExporterStart);
    registry_.heartbeat(name, beat, kExporterStart);
  }
  [[nodiscard]] std::string text() const {
    const HttpTraffic traffic{{{200, 7}, {429, 1}}, 3, 4, 5};
    return metrics_text({registry_, admissions_, 2, 1, traffic, 5, 0.001, kExporterStart,
                         kExporterStart + std::chrono::milliseconds(500), "1.2.3", 6});
  }

  PoolRegistry registry_{7};
  ManualClock clock_{kExporterStart};
  Admissions admissions_{
      clock_, registry_, {}, [](const std::string&, const ToPool&, Time, const PoolCalls::Done&) {
      }};
};

TEST_F(ExporterTest, HasEveryMetricOfTheTier) {
  add_pool("a");
  const std::string page = text();
  for (const char* line : {
           "tributary_build_info{version=\"1.2.3\"} 1",
           "tributary_pools{state=\"serving\"} 1",
           "tributary_pools{state=\"lost\"} 0",
           "tributary_workers{state=\"serving\"} 1",
           "tributary_workers{state=\"silent\"} 1",
           "tributary_pages_capacity{pool=\"a\",rank=\"0\"} 800",
           "tributary_pages_used{pool=\"a\",rank=\"1\"} 10",
           "tributary_pages_reserved{pool=\"a\",rank=\"1\"} 20",
           "tributary_pages_idle{pool=\"a\",rank=\"1\"} 6",
           "tributary_prefix_cache_queries_total{pool=\"a\"} 22",
           "tributary_prefix_cache_hits_total{pool=\"a\"} 23",
           "tributary_worker_attended_rows_total{pool=\"a\",rank=\"0\"} 700",
           "tributary_worker_attend_seconds_total{pool=\"a\",rank=\"1\"} 0.5",
           "tributary_heartbeat_age_seconds{pool=\"a\",rank=\"0\"} 0.75",
           "tributary_heartbeat_age_seconds{pool=\"a\",rank=\"1\"} 2.5",
           "tributary_sequences{pool=\"a\",state=\"filling\"} 4",
           "tributary_admissions_total{result=\"admitted\"} 0",
           "tributary_tokens_total{pool=\"a\"} 3",
           "tributary_steps_total{pool=\"a\",result=\"committed\"} 4",
           "tributary_exchanged_bytes_total{pool=\"a\"} 7",
           "tributary_moves_total{pool=\"a\"} 19",
           "tributary_cancelled_moves_total{pool=\"a\"} 20",
           "tributary_moved_bytes_total{pool=\"a\"} 21",
           "tributary_ingested_bytes_total{pool=\"a\"} 9",
           "tributary_pulled_rows_total{pool=\"a\"} 10",
           "tributary_pulled_bytes_total{pool=\"a\"} 11",
           "tributary_refused_rows_total{pool=\"a\",reason=\"corrupt\"}",
           "tributary_limits_total{pool=\"a\",limit=\"ended_sequence\"}",
           "tributary_leases_expired_total{pool=\"a\"} 14",
           "tributary_canary_checks_total{pool=\"a\"} 15",
           "tributary_canary_failures_total{pool=\"a\"} 16",
           "tributary_canary_error_ratio{pool=\"a\"} 0.0015",
           "tributary_balance_ratio{pool=\"a\"} 1.04",
           "tributary_cost_factor{pool=\"a\",phase=\"attend\"} 1.25",
           "tributary_cost_factor{pool=\"a\",phase=\"exchange\"} 0.5",
           "tributary_cost_factor{pool=\"a\",phase=\"combine\"} 2",
           "tributary_step_duration_seconds_bucket{pool=\"a\",le=\"5e-05\"} 1",
           "tributary_step_duration_seconds_bucket{pool=\"a\",le=\"1\"} 1",
           "tributary_step_duration_seconds_bucket{pool=\"a\",le=\"+Inf\"} 2",
           "tributary_step_duration_seconds_count{pool=\"a\"} 2",
           "tributary_commit_interval_seconds_bucket{pool=\"a\",le=\"10\"} 1",
           "tributary_first_commit_seconds_count{pool=\"a\"} 2",
           "tributary_phase_duration_seconds_count{pool=\"a\",phase=\"attend\"} 1",
           "tributary_round_duration_seconds_count{pool=\"a\"} 2",
           "tributary_ingest_duration_seconds_count{pool=\"a\"} 2",
           "tributary_batch_size_bucket{pool=\"a\",le=\"8\"} 1",
           "tributary_http_requests_total{code=\"429\"} 1",
           "tributary_http_connections_closed_total{reason=\"refused\"} 3",
           "tributary_http_connections_closed_total{reason=\"evicted\"} 4",
           "tributary_http_connections_closed_total{reason=\"timed_out\"} 5",
           "tributary_log_lines_dropped_total 6",
           "tributary_scrape_duration_seconds 0.001",
       }) {
    EXPECT_THAT(page, HasSubstr(line));
  }
}

TEST_F(ExporterTest, AnIdlePoolHasNoBalance) {
  add_pool("a");
  EXPECT_THAT(text(), HasSubstr("tributary_balance_ratio"));
  Heartbeat idle;
  idle.workers = {{.rank = 0}, {.rank = 1}};
  registry_.heartbeat("a", idle, kExporterStart);
  EXPECT_THAT(text(), Not(HasSubstr("tributary_balance_ratio")));
}

TEST_F(ExporterTest, LostPoolsTakeTheirMetricsAlong) {
  add_pool("a");
  add_pool("b");
  registry_.lose("a", "gone", kExporterStart);
  const std::string page = text();
  EXPECT_THAT(page, HasSubstr("tributary_pools{state=\"lost\"} 1"));
  EXPECT_THAT(page, HasSubstr("tributary_workers{state=\"lost\"} 2"));
  EXPECT_THAT(page, HasSubstr("tributary_pools_lost_total 1"));
  EXPECT_THAT(page, Not(HasSubstr("pool=\"a\"")));
  EXPECT_THAT(page, HasSubstr("pool=\"b\""));
}

/// The complaints of `promtool check metrics` about a page; empty if there are none.
std::string promtool(const std::string& page) {
  const auto path = std::filesystem::path(::testing::TempDir()) /
                    fmt::format("tributary_exporter_test_{}.metrics", getpid());
  std::ofstream(path) << page;
  const std::string command = "promtool check metrics < '" + path.string() + "' 2>&1";
  std::string said;
  // NOLINTNEXTLINE(cert-env33-c): a fixed command, in a test
  FILE* pipe = popen(command.c_str(), "r");
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) said += static_cast<char>(c);
  const int status = pclose(pipe);
  std::filesystem::remove(path);
  if (WEXITSTATUS(status) == 127) said = "promtool is not installed: apt-get install prometheus";
  if (status != 0 && said.empty()) said = "status " + std::to_string(status);
  return said;
}

TEST_F(ExporterTest, PromtoolHasNothingToSay) {
  EXPECT_EQ(promtool(text()), "");
  add_pool("a");
  add_pool("b");
  EXPECT_EQ(promtool(text()), "");
  EXPECT_NE(promtool("tributary_x_total{"), "");  // promtool does find errors
}

TEST_F(ExporterTest, AScrapeOfALargeTierIsCheap) {
  for (int i = 0; i < 8; ++i) add_pool(fmt::format("pool{}", i), 64);
  // The time of this thread, whatever else the machine does.
  const auto cpu_seconds = [] {
    timespec now{};
    EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  };
  const double begin = cpu_seconds();
  const std::string page = text();
  const double seconds = cpu_seconds() - begin;
  EXPECT_LT(page.size(), 1'000'000U);
  EXPECT_LT(seconds, 2);  // generous: sanitizers; see the bench for the real number
  RecordProperty("microseconds", static_cast<int>(seconds * 1e6));
}

}  // namespace
}  // namespace tributary
