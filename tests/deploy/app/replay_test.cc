// A replay's promises: the same bits for every pool, every page freed, bytes as planned, right
// values.
#include "deploy/app/replay/replay.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <latch>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "comm/local/local_transport.h"
#include "core/base/error.h"
#include "deploy/app/replay/replay_clients.h"
#include "deploy/runtime/backends.h"
#include "deploy/service/client/control_plane.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/protocol/machine_file.h"
#include "tests/deploy/app/replay_runs.h"
#include "tests/sanitized.h"

namespace tributary {
namespace {

using test::kv_gib_of;
using test::run_threads;
using test::small_options;
using test::small_trace;

/// Holds for every replay that ends.
void expect_sound(const ReplayReport& report, const std::vector<TraceRequest>& requests) {
  EXPECT_EQ(report.rounds->pages_in_use_at_end, 0);
  EXPECT_GT(report.rounds->peak_pages, 0);
  EXPECT_LE(report.rounds->peak_pages, report.pool->pages_total);
  EXPECT_EQ(report.rounds->exchange_bytes, report.rounds->planned_exchange_bytes);
  EXPECT_LE(report.rounds->state_bytes, report.rounds->exchange_bytes);
  EXPECT_EQ(report.requests, static_cast<std::int64_t>(requests.size()));
  std::int64_t prompt = 0;
  std::int64_t output = 0;
  for (const TraceRequest& request : requests) {
    prompt += request.input_length;
    output += request.output_length;
  }
  EXPECT_EQ(report.prompt_tokens, prompt);
  EXPECT_EQ(report.tokens, output);
  EXPECT_GE(report.rounds->balance, 1);
  EXPECT_GE(report.rounds->mean_spread, 1);
}

std::string describe(const ReplayOptions& o, int workers) {
  return fmt::format(
      "{} workers, spread {}, exchange {}, max batch {}, {} tokens per step, leaf {}, {}", workers,
      spread_policy_name(o.spread), exchange_name(o.exchange), o.max_batch, o.tokens_per_step,
      o.leaf_tokens, o.backend);
}

constexpr SpreadPolicy kSpreads[] = {SpreadPolicy::kAuto, SpreadPolicy::kSingle,
                                     SpreadPolicy::kAll};
constexpr Exchange kExchanges[] = {Exchange::kAllGather, Exchange::kAllToAll};

/// Prompts that begin alike, of three texts: what was pushed once need not be pushed again.
TEST(ReplayPrefixes, ChangeNoBitAndSaveWhatTheTraceSays) {
  std::vector<TraceRequest> requests;
  for (std::int64_t i = 0; i < 24; ++i) {
    const std::int64_t text = i % 3;
    requests.push_back({.timestamp_ms = 0,
                        .input_length = 200 + 23 * i,
                        .output_length = 1 + i % 5,
                        .hash_ids = {text, 10 + text + i / 6 * 3}});
  }
  ReplayOptions options = small_options();
  options.length_scale = 1;
  options.max_batch = 3;  // the others come when some have ended
  options.no_prefixes = true;
  const ReplayReport whole = run_threads(options, requests, 1);
  expect_sound(whole, requests);
  EXPECT_EQ(whole.present_tokens, 0);
  options.no_prefixes = false;
  for (const int workers : {1, 2, 4}) {
    for (const SpreadPolicy spread : kSpreads) {
      options.spread = spread;
      SCOPED_TRACE(describe(options, workers));
      const ReplayReport report = run_threads(options, requests, workers);
      expect_sound(report, requests);
      EXPECT_EQ(report.digest, whole.digest);
      EXPECT_GT(report.present_tokens, 0);
      EXPECT_EQ(report.present_tokens % 64, 0);
    }
  }
}

/// One instruction set's digest of the small trace.
class ReplayDigest : public testing::TestWithParam<std::string> {};

TEST_P(ReplayDigest, IsTheSameForEveryPoolSpreadExchangeAndBatch) {
  const auto requests = small_trace();
  ReplayOptions options = small_options();
  options.backend = GetParam();
  const std::uint64_t expected = run_threads(options, requests, 1).digest;
  for (const int workers : {1, 2, 3, 4}) {
    for (const SpreadPolicy spread : kSpreads) {
      for (const Exchange exchange : kExchanges) {
        // Every batch limit with every number of tokens on the preferred instruction set; the
        // others differ from it in arithmetic alone.
        const bool preferred = GetParam() == backend_names()[1];
        for (const int max_batch : preferred ? std::vector{1, 3, 64} : std::vector{3}) {
          for (const int tokens_per_step : preferred ? std::vector{1, 3} : std::vector{2}) {
            options.spread = spread;
            options.exchange = exchange;
            options.max_batch = max_batch;
            options.tokens_per_step = tokens_per_step;
            SCOPED_TRACE(describe(options, workers));
            const ReplayReport report = run_threads(options, requests, workers);
            EXPECT_EQ(report.digest, expected);
            expect_sound(report, requests);
            if (workers == 1 || spread == SpreadPolicy::kSingle) {
              EXPECT_EQ(report.rounds->state_bytes, 0U);
              EXPECT_EQ(report.rounds->mean_spread, 1);
            }
            if (workers > 1 && spread == SpreadPolicy::kAll) {
              EXPECT_GT(report.rounds->state_bytes, 0U);
              EXPECT_GT(report.rounds->mean_spread, 1);
            }
          }
        }
      }
    }
  }
}

TEST_P(ReplayDigest, OfRowsOfCodesIsTheSameForEveryPoolAndSpread) {
  const auto requests = small_trace();
  ReplayOptions options = small_options();
  options.backend = GetParam();
  const std::uint64_t of_values = run_threads(options, requests, 1).digest;
  RowFormat scaled = RowFormat::kFp8;
  scaled.scale = 0.01F;
  for (const RowFormat format : {RowFormat::kFp8DsMla, scaled}) {
    options.row_format = format;
    options.spread = SpreadPolicy::kAuto;
    const std::uint64_t expected = run_threads(options, requests, 1).digest;
    EXPECT_NE(expected, of_values) << "rows were not rounded";
    for (const int workers : {2, 3, 4}) {
      for (const SpreadPolicy spread : kSpreads) {
        options.spread = spread;
        SCOPED_TRACE(row_format_name(format) + ", " + describe(options, workers));
        const ReplayReport report = run_threads(options, requests, workers);
        EXPECT_EQ(report.digest, expected);
        expect_sound(report, requests);
      }
    }
  }
}

TEST_P(ReplayDigest, IsOfValuesThatAreRight) {
  const auto requests = small_trace();
  ReplayOptions options = small_options();
  options.backend = GetParam();
  options.canary_rate = 1;
  options.spread = SpreadPolicy::kAll;
  const std::int64_t outputs = std::accumulate(
      requests.begin(), requests.end(), std::int64_t{0},
      [](std::int64_t sum, const TraceRequest& request) { return sum + request.output_length; });
  // Rows and queries are rounded for the float64 reference as for the pool, so that what is left is
  // the arithmetic: fp32, or of bf16 products where the rows and queries are bf16.
  for (const auto& [type, bound] :
       {std::pair{RowFormat::kBF16, 1e-2}, {RowFormat::kF32, 3e-5}, {RowFormat::kFp8DsMla, 1e-2}}) {
    options.row_format = type;
    options.query_dtype = row_values(type);
    const ReplayReport report = run_threads(options, requests, 3);
    EXPECT_EQ(report.canaries, outputs * options.layers) << row_format_name(type);
    EXPECT_LE(report.canary_max_relative_error, bound) << row_format_name(type);
    EXPECT_GT(report.canary_max_relative_error, 0) << row_format_name(type);
  }
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> names = backend_names();
  names.erase(names.begin());             // `cpu` is another name of the first
  if (test::kSanitized) names.resize(1);  // kernels_cpu_test has them all there
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Backends, ReplayDigest, testing::ValuesIn(instruction_sets()), test_name);

TEST(Replay, DigestIsOfTheRequestsTheSeedAndTheLayers) {
  const auto requests = small_trace();
  const ReplayOptions options = small_options();
  const std::uint64_t digest = run_threads(options, requests, 1).digest;

  ReplayOptions other = options;
  other.seed = 2;
  EXPECT_NE(run_threads(other, requests, 1).digest, digest);
  other = options;
  other.layers = 1;
  EXPECT_NE(run_threads(other, requests, 1).digest, digest);
  auto longer = requests;
  longer[3].input_length += 1;
  EXPECT_NE(run_threads(options, longer, 1).digest, digest);
}

/// Pools of a page a worker and more, up to all that one needs.
void expect_full_pools_lose_nothing(ReplayOptions options) {
  const auto requests = small_trace();
  const std::uint64_t digest = run_threads(options, requests, 1).digest;
  struct Case {
    int workers;
    SpreadPolicy spread;
    std::int32_t pages;  // of each worker
  };
  // The longest request takes ceil(463 / 64) = 8 pages. Exactly these on one worker; on two as many
  // in all, so that it needs every page of both.
  for (const Case& c : {Case{1, SpreadPolicy::kAuto, 8}, Case{1, SpreadPolicy::kSingle, 8},
                        Case{2, SpreadPolicy::kAuto, 4}, Case{2, SpreadPolicy::kAll, 4},
                        Case{3, SpreadPolicy::kSingle, 8}, Case{4, SpreadPolicy::kAll, 2},
                        Case{8, SpreadPolicy::kAuto, 1}, Case{8, SpreadPolicy::kAll, 1}}) {
    options.kv_gib = kv_gib_of(options, c.pages);
    options.spread = c.spread;
    SCOPED_TRACE(describe(options, c.workers));
    const ReplayReport report = run_threads(options, requests, c.workers);
    EXPECT_EQ(report.digest, digest);
    EXPECT_EQ(report.pool->pages_total, c.pages * c.workers);
    expect_sound(report, requests);
    // All requests together need 19 pages.
    const bool must_wait = report.pool->pages_total < 19;
    EXPECT_TRUE(!must_wait || report.steps > 6) << "nobody waited";
  }
}

TEST(Replay, APoolThatIsFullWaitsAndLosesNothing) {
  expect_full_pools_lose_nothing(small_options());
}

TEST(Replay, APoolFullOfRowsOfCodesWaitsAndLosesNothing) {
  ReplayOptions options = small_options();
  options.row_format = RowFormat::kFp8DsMla;
  expect_full_pools_lose_nothing(options);
}

TEST(Replay, TheSameMemoryHoldsMoreRowsOfCodes) {
  ReplayOptions options = small_options();
  const auto pages = [&] {
    return static_cast<double>(run_threads(options, small_trace(), 1).pool->pages_total);
  };
  const double plain = pages();
  options.row_format = RowFormat::kFp8DsMla;
  EXPECT_NEAR(pages() / plain, 1152.0 / 656, 0.01);
}

TEST(Replay, ARequestThatCanNeverFitIsRefusedBeforeTheFirstStep) {
  auto requests = small_trace();
  requests.push_back({30, 513, 1, {}});  // the last: 9 pages
  ReplayOptions options = small_options();
  options.kv_gib = kv_gib_of(options, 4);
  for (const SpreadPolicy spread : kSpreads) {
    options.spread = spread;
    try {
      (void)run_threads(options, requests, 2);
      FAIL() << "accepted with spread " << spread_policy_name(spread);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kTooLarge);
      // Whole sequences are refused earlier: the third needs 8 pages of one worker, which has 4.
      const bool single = spread == SpreadPolicy::kSingle;
      EXPECT_THAT(error.what(), testing::HasSubstr(single ? "request 2" : "request 6"));
      EXPECT_THAT(error.what(), testing::HasSubstr(single ? "8 pages" : "9 pages"));
      EXPECT_THAT(error.what(), testing::HasSubstr("4 on each of 2 workers"));
    }
  }
}

TEST(Replay, ArrivalsInTheirOwnTimeGiveTheSameDigest) {
  const auto requests = small_trace();
  ReplayOptions options = small_options();
  const std::uint64_t digest = run_threads(options, requests, 2).digest;
  options.speed = 0.5;
  const ReplayReport report = run_threads(options, requests, 2);
  EXPECT_EQ(report.digest, digest);
  expect_sound(report, requests);
  EXPECT_GE(report.seconds, 0.040);  // the last arrives after 20 ms at half the pace
}

TEST(Replay, WorkersWaitForArrivalsThatAreFurtherApartThanTheirDeadlines) {
  auto requests = small_trace();
  requests.back().timestamp_ms = 5000;
  ReplayOptions options = small_options();
  options.speed = 1;
  options.failure_timeout_ms = 2000;       // 4000 for an order
  options.kv_gib = kv_gib_of(options, 8);  // little to set up in that time
  const ReplayReport report = run_threads(options, requests, 2);
  expect_sound(report, requests);
  EXPECT_GE(report.seconds, 5);
}

/// Constants of a machine that is made up, as a file.
std::string costs_file(const std::string& name, const MachineCosts& costs) {
  const Machine machine{.description = name,
                        .source = "a test",
                        .backend = "cpu",
                        .communicator = "local",
                        .workers = 1,
                        .threads = 0,
                        .costs = costs};
  const std::string path = testing::TempDir() + "replay_" + name + ".json";
  std::ofstream(path) << nlohmann::ordered_json{{"machine", to_json(machine)}};
  return path;
}

TEST(Replay, PlacesByTheCostsThatItIsGivenAndKeepsItsDigest) {
  ReplayOptions options = small_options();
  const auto placed_by = [&](const std::string& name, const MachineCosts& costs) {
    options.costs = costs_file(name, costs);
    const ReplayReport report = run_threads(options, small_trace(), 3);
    EXPECT_THAT(report.pool->costs, testing::HasSubstr(name));
    return report;
  };
  const ReplayReport cut = placed_by("slow_attention", {.attend_byte_ns = 1000});
  const ReplayReport whole = placed_by(
      "slow_exchange",
      {.attend_byte_ns = 1e-3, .all_gather_message_us = 1e6, .all_to_all_message_us = 1e6});
  EXPECT_GT(cut.rounds->mean_spread, 1);
  EXPECT_EQ(whole.rounds->mean_spread, 1);
  EXPECT_EQ(cut.digest, whole.digest);
}

/// A tier on a slow machine: it frees nothing within 5 s. Interrupts the run once all are admitted.
class SlowTier final : public ControlPlane {
 public:
  explicit SlowTier(int sequences) : to_come_(sequences) {}

  SequenceHandle admit(const AdmitRequest& wanted, Deadline /*deadline*/) override {
    to_come_.arrive_and_wait();
    if (!interrupted_.exchange(true)) {
      std::raise(SIGINT);
      raised_.count_down();
    }
    raised_.wait();
    SequenceHandle handle;
    handle.id = ++admitted_;
    handle.prompt_tokens = wanted.prompt_tokens;
    handle.addresses = {"local://nobody"};
    handle.home = 1;  // which is none of these, so that the control plane is asked at once
    handle.shape.heads = 1;
    handle.shape.layers = 1;
    return handle;
  }
  SequenceHandle query(SequenceId id, Deadline /*deadline*/) override {
    fail(ErrorCode::kNotFound, "sequence {}", id);
  }
  void free(SequenceId id, const std::string& /*pool*/, Deadline deadline) override {
    if (deadline.expired(std::chrono::steady_clock::now() + std::chrono::seconds(5))) {
      fail(ErrorCode::kDeadlineExceeded, "sequence {} is not free yet", id);
    }
    ++freed_;
  }
  std::vector<std::string> workers(Deadline /*deadline*/) override { return {"local://nobody"}; }
  [[nodiscard]] int admitted() const { return admitted_; }
  [[nodiscard]] int freed() const { return freed_; }

 private:
  std::latch to_come_;
  std::atomic<bool> interrupted_{false};
  std::latch raised_{1};
  std::atomic<int> admitted_{0}, freed_{0};
};

TEST(Replay, AnInterruptedRunFreesItsSequencesOnASlowMachineToo) {
  ReplayOptions options = small_options();
  options.clients = 4;
  const auto tier = std::make_shared<SlowTier>(options.clients);
  const auto network = std::make_shared<LocalNetwork>();
  const auto make_client = [&] {
    TierClientConfig config;
    config.timeout = std::chrono::seconds(60);
    config.renew_leases = false;
    return std::make_unique<TierClient>(
        config,
        [&](const TransportConfig& transport, TransportHandler& handler) {
          return make_local_transport(network, transport, handler);
        },
        tier);
  };
  const ReplayReport report =
      run_clients(options, small_trace(), /*terminal=*/nullptr, make_client);
  EXPECT_EQ(report.ended_by, SIGINT);
  EXPECT_EQ(tier->admitted(), options.clients);
  EXPECT_EQ(tier->freed(), options.clients);
}

TEST(ReplayRequests, AreTheFirstOfTheWorkloadScaled) {
  ReplayOptions options;
  options.requests = 5;
  const auto whole = replay_requests(options);
  ASSERT_EQ(whole.size(), 5U);
  options.length_scale = 0.001;
  const auto scaled = replay_requests(options);
  ASSERT_EQ(scaled.size(), 5U);
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    // Rounded, and at least one token.
    EXPECT_NEAR(static_cast<double>(scaled[i].input_length),
                std::max(1.0, 0.001 * static_cast<double>(whole[i].input_length)), 0.5);
    EXPECT_GE(scaled[i].output_length, 1);
    EXPECT_EQ(scaled[i].timestamp_ms, whole[i].timestamp_ms);
  }
  options.requests = 0;  // all: of the built-in workload a thousand
  EXPECT_EQ(replay_requests(options).size(), 1000U);
}

}  // namespace
}  // namespace tributary
