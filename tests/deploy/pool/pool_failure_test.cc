// A worker that fails in the middle of a round, does not arrive, or cannot go on: every rank ends
// the round with the same error, and the pool goes on or says that it cannot.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

constexpr int kWorkers = 3;
const std::vector<PoolRequest> kRequests{{1, 300, 12}, {2, 61, 12}, {3, 0, 12}, {4, 130, 12}};

PoolSetup pool_of_three(Exchange exchange = Exchange::kAllToAll) {
  PoolSetup setup;
  setup.workers = kWorkers;
  setup.spread = SpreadPolicy::kAll;
  setup.exchange = exchange;
  setup.backend = [](int) { return make_cpu_backend({}); };
  return setup;
}

/// Fails the nth `call` of one rank.
class Fault {
 public:
  Fault(int rank, std::string_view call, int nth) : rank_(rank), call_(call), nth_(nth) {}

  [[nodiscard]] PoolHook hook() {
    return [this](int rank, std::string_view call) {
      if (rank != rank_ || call != call_ || ++seen_ != nth_) return;
      if (nth_ % 2 == 0) throw std::runtime_error("planted");
      throw Error(ErrorCode::kUnsupported, "planted");
    };
  }
  [[nodiscard]] bool happened() const { return seen_ >= nth_; }
  /// The error message of every rank, up to the number of the round.
  [[nodiscard]] std::string message() const {
    return fmt::format("worker {} failed in round", rank_);
  }

 private:
  int rank_;
  std::string_view call_;
  int nth_;
  std::atomic<int> seen_ = 0;
};

/// Decodes kRequests, one token a step. A step that fails is tried again. Returns how many failed.
int decode_through_failures(PoolLeader& leader) {
  std::vector<StepItem> step;
  for (const PoolRequest& request : kRequests) step.push_back({leader.admit(request).value(), 1});
  int failures = 0;
  for (int done = 0; done < 12;) {
    try {
      (void)leader.step(step);
      ++done;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kWorkerFailed || ++failures > 3) throw;
    }
  }
  for (const auto& item : step) leader.sequencer.sequences().free(item.id);
  return failures;
}

/// Expects the same status on all ranks after every order, and no missing ones.
void expect_agreement(const PoolResult& result) {
  for (const auto& statuses : result.statuses) {
    ASSERT_EQ(statuses.size(), result.statuses[0].size());
    for (std::size_t i = 0; i < statuses.size(); ++i) {
      EXPECT_EQ(statuses[i].code(), result.statuses[0][i].code()) << "order " << i;
      EXPECT_EQ(statuses[i].message(), result.statuses[0][i].message()) << "order " << i;
    }
  }
}

PoolOutputs undisturbed() {
  return run_pool(pool_of_three(),
                  [](PoolLeader& leader) { EXPECT_EQ(decode_through_failures(leader), 0); })
      .outputs;
}

struct FaultCase {
  std::string_view call;
  std::vector<int> nth;  // the first, and one in the middle
};

class PoolFault : public testing::TestWithParam<FaultCase> {};

TEST_P(PoolFault, EndsTheRoundForAllAndCanBeTriedAgain) {
  const PoolOutputs expected = undisturbed();
  ASSERT_EQ(expected.size(), 2 * 12 * kRequests.size());
  for (const Exchange exchange : {Exchange::kAllGather, Exchange::kAllToAll}) {
    if (GetParam().call == "gather" && exchange == Exchange::kAllGather) continue;
    for (int rank = 0; rank < kWorkers; ++rank) {
      for (const int nth : GetParam().nth) {
        SCOPED_TRACE(fmt::format("{}, rank {}, call {}", exchange_name(exchange), rank, nth));
        Fault fault(rank, GetParam().call, nth);
        PoolSetup setup = pool_of_three(exchange);
        setup.hook = fault.hook();
        int failures = 0;
        const PoolResult result = run_pool(
            setup, [&](PoolLeader& leader) { failures = decode_through_failures(leader); });
        ASSERT_TRUE(fault.happened());
        EXPECT_EQ(failures, 1);
        expect_agreement(result);
        int heard = 0;
        for (const Status& status : result.statuses[0]) {
          if (status.ok()) continue;
          ++heard;
          EXPECT_EQ(status.code(), ErrorCode::kWorkerFailed);
          EXPECT_NE(status.message().find(fault.message()), std::string::npos) << status.message();
          EXPECT_NE(status.message().find("planted"), std::string::npos) << status.message();
        }
        EXPECT_EQ(heard, 1);
        EXPECT_EQ(differing_outputs(result.outputs, expected), 0U);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, PoolFault,
                         testing::Values(FaultCase{"write_tokens", {1, 4, 23}},
                                         FaultCase{"read_states", {1, 2, 7, 24}},
                                         FaultCase{"append", {1, 6}},
                                         FaultCase{"attend", {1, 4, 24}},
                                         FaultCase{"merge", {1, 4}}, FaultCase{"gather", {1, 4}},
                                         FaultCase{"synchronize", {1, 2, 9, 32}}),
                         [](const auto& info) { return std::string(info.param.call); });

TEST(PoolFailure, TheFirstOfSeveralIsNamed) {
  PoolSetup setup = pool_of_three();
  setup.hook = [](int rank, std::string_view call) {
    if (rank > 0 && call == "write_tokens") throw std::runtime_error(fmt::format("of {}", rank));
  };
  const PoolResult result = run_pool(setup, [](PoolLeader& leader) {
    std::vector<StepItem> step;
    step.reserve(kRequests.size());
    for (const PoolRequest& request : kRequests) {
      step.push_back({leader.admit(request).value(), 1});
    }
    EXPECT_EQ(message_of([&] { (void)leader.step(step); }),
              "worker 1 failed in round 1: internal: of 1");
  });
  expect_agreement(result);
}

/// Expects the status of a pool that has ended on every rank that takes part.
void expect_end(const PoolResult& result, ErrorCode code) {
  for (std::size_t rank = 0; rank < result.statuses.size(); ++rank) {
    ASSERT_FALSE(result.statuses[rank].empty()) << "rank " << rank;
    EXPECT_EQ(result.statuses[rank].back().code(), code) << "rank " << rank;
    EXPECT_EQ(result.statuses[rank].back().message(), result.statuses[0].back().message());
  }
}

TEST(PoolFailure, WithoutMemoryForARoundThePoolEnds) {
  std::atomic<bool> exhausted = false;
  PoolSetup setup = pool_of_three();
  setup.hook = [&](int rank, std::string_view call) {
    if (rank == 1 && call == "allocate" && exhausted) {
      throw Error(ErrorCode::kPoolFull, "no memory on worker 1");
    }
  };
  const PoolResult result = run_pool(setup, [&](PoolLeader& leader) {
    const auto a = leader.admit({1, 300, 30}).value();
    EXPECT_TRUE(leader.lead().status.ok());
    exhausted = true;
    EXPECT_EQ(code_of([&] { (void)leader.step({{a, 16}}); }), ErrorCode::kPoolFull);
    EXPECT_EQ(code_of([&] { (void)leader.step({{a, 1}}); }), ErrorCode::kPoolFull);
  });
  expect_end(result, ErrorCode::kPoolFull);
}

TEST(PoolFailure, AnOrderThatDoesNotFitTheTableEndsThePool) {
  const PoolResult result = run_pool(pool_of_three(), [](PoolLeader& leader) {
    const auto a = leader.admit({1, 100, 4}).value();
    (void)leader.step({{a, 1}});
    Order order = leader.sequencer.take_order();
    order.step = {{.id = a, .tokens = 1, .epoch = 9}};  // that it never had
    EXPECT_EQ(leader.lead(order).status.code(), ErrorCode::kStaleEpoch);
    EXPECT_EQ(leader.lead().status.code(), ErrorCode::kStaleEpoch) << "for good";
  });
  expect_end(result, ErrorCode::kStaleEpoch);
}

TEST(PoolFailure, ARankThatNeverComesIsMissedByItsDeadline) {
  for (const int absent : {1, 2}) {
    PoolSetup setup = pool_of_three();
    setup.absent = {absent};
    setup.timeout = std::chrono::milliseconds(500);
    setup.pages = 8;
    PoolResult result = run_pool(setup, [](PoolLeader& leader) {
      const auto a = leader.admit({1, 100, 4}).value();
      EXPECT_EQ(code_of([&] { (void)leader.step({{a, 1}}); }), ErrorCode::kDeadlineExceeded);
    });
    EXPECT_TRUE(result.statuses[static_cast<std::size_t>(absent)].empty());
    result.statuses.erase(result.statuses.begin() + absent);
    expect_end(result, ErrorCode::kDeadlineExceeded);
  }
}

TEST(PoolFailure, FollowersDoNotWaitForEverForALeader) {
  PoolSetup setup = pool_of_three();
  setup.absent = {0};
  setup.timeout = std::chrono::milliseconds(500);
  setup.pages = 8;
  PoolResult result = run_pool(setup, [](PoolLeader&) {});
  result.statuses.erase(result.statuses.begin());
  expect_end(result, ErrorCode::kDeadlineExceeded);
}

TEST(PoolFailure, ARankThatHangsInARoundIsMissedByItsDeadline) {
  std::promise<void> over;
  const std::shared_future<void> released = over.get_future().share();
  PoolSetup setup = pool_of_three();
  setup.timeout = std::chrono::milliseconds(500);
  setup.pages = 8;
  setup.hook = [&](int rank, std::string_view call) {
    if (rank == 2 && call == "attend") released.wait();
  };
  const PoolResult result = run_pool(setup, [&](PoolLeader& leader) {
    const auto a = leader.admit({1, 300, 4}).value();
    EXPECT_EQ(code_of([&] { (void)leader.step({{a, 1}}); }), ErrorCode::kDeadlineExceeded);
    over.set_value();
  });
  expect_end(result, ErrorCode::kDeadlineExceeded);
}

/// An hour behind, from `late` on: who reckons a deadline by it is held up until long after it.
class LateClock final : public Clock {
 public:
  [[nodiscard]] Time now() const override {
    return steady_clock().now() - (late ? std::chrono::hours(1) : std::chrono::hours(0));
  }
  void wait_until(Condition& changed, std::unique_lock<std::mutex>& lock, Time until) override {
    steady_clock().wait_until(changed, lock, until);
  }

  std::atomic<bool> late = false;
};

TEST(PoolFailure, RanksThatStoodStillTogetherUntilAfterTheDeadlineGoOn) {
  LateClock clock;
  PoolSetup setup = pool_of_three();
  setup.clock = &clock;
  const PoolResult result = run_pool(setup, [&](PoolLeader& leader) {
    clock.late = true;
    (void)decode_through_failures(leader);
    clock.late = false;
  });
  for (const auto& statuses : result.statuses) {
    for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST(PoolFailure, ALeaderThatThrowsReleasesItsFollowers) {
  EXPECT_EQ(message_of([] {
              (void)run_pool(pool_of_three(), [](PoolLeader& leader) {
                (void)leader.admit({1, 100, 4}).value();
                EXPECT_TRUE(leader.lead().status.ok());
                fail(ErrorCode::kInternal, "the engine is gone");
              });
            }),
            "the engine is gone");
}

}  // namespace
}  // namespace tributary
