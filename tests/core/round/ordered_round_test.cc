// Rounds that are enqueued as a whole: the same bits over any number of ranks as rounds that wait
// between their phases, one wait each, and no work in progress after a failure.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <mutex>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/round/round.h"
#include "tests/core/round/ordered_rank.h"

namespace tributary {
namespace {

using test::DeferredBackend;
using test::kLayers;
using test::kSteps;
using test::on_ranks;
using test::Pieces;
using test::Rank;
using test::States;

/// All steps and layers.
States decode(int ranks, Pieces pieces, Exchange exchange) {
  States states;
  std::mutex mutex;
  on_ranks(ranks, pieces, exchange, [&](Rank& rank) {
    for (std::size_t step = 0; step < kSteps.size(); ++step) {
      rank.begin_step(step);
      for (int layer = 0; layer < kLayers; ++layer) {
        const Status status = rank.run(layer);
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_TRUE(rank.failure().ok()) << rank.failure().message();
        if (test::is_ordered(pieces)) {
          EXPECT_EQ(rank.waits(), 1) << "step " << step << ", layer " << layer;
        }
        const std::lock_guard lock(mutex);
        rank.read(layer, states);
      }
      rank.end_step();
    }
  });
  return states;
}

class OrderedRound : public testing::TestWithParam<std::tuple<int, Exchange>> {
 protected:
  [[nodiscard]] static int ranks() { return std::get<0>(GetParam()); }
  [[nodiscard]] static Exchange exchange() { return std::get<1>(GetParam()); }
  static void run(const std::function<void(Rank&)>& body) {
    for (auto pieces : {Pieces::kDeferred, Pieces::kRecorded})
      on_ranks(ranks(), pieces, exchange(), body);
  }
};

TEST_P(OrderedRound, ComesToTheBitsOfOneRankThatWaits) {
  static const States expected = decode(1, Pieces::kPlain, Exchange::kAllToAll);
  ASSERT_EQ(expected.size(), kLayers * 9U);
  EXPECT_EQ(decode(ranks(), Pieces::kPlain, exchange()), expected);
  EXPECT_EQ(decode(ranks(), Pieces::kDeferredBackend, exchange()), expected)
      << "a backend that returns early, and a communicator that is not ordered with it";
  EXPECT_EQ(decode(ranks(), Pieces::kDeferred, exchange()), expected);
  EXPECT_EQ(decode(ranks(), Pieces::kRecorded, exchange()), expected);
}

TEST_P(OrderedRound, WhatComesAgainIsReplayed) {
  on_ranks(ranks(), Pieces::kRecorded, exchange(), [](Rank& rank) {
    const DeferredBackend& backend = rank.deferred();
    const auto counts = [&] {
      return std::array{backend.single_calls(), backend.records(), backend.replays()};
    };
    rank.begin_step(1);
    EXPECT_TRUE(rank.run(0).ok());
    const auto first = counts();
    EXPECT_EQ(first, (std::array{first[0], 0, 0})) << "work that is not repeated is not recorded";
    EXPECT_GT(first[0], 0) << "every rank holds leaves";
    EXPECT_TRUE(rank.run(1).ok());
    const auto second = counts();
    // Recordings of up to three kinds: sends, work on the rank's leaves, merges of its home.
    const int kinds = second[1];
    EXPECT_TRUE(kinds >= 1 && kinds <= 3) << kinds;
    EXPECT_EQ(second, (std::array{first[0], kinds, kinds})) << "all calls of a round";
    EXPECT_TRUE(rank.run(2).ok());
    EXPECT_EQ(counts(), (std::array{first[0], kinds, 2 * kinds})) << "one serves all layers";
  });
}

TEST_P(OrderedRound, PhasesTakeTheTimeOfTheDevice) {
  run([&](Rank& rank) {
    rank.begin_step(1);
    const int before = rank.queue().done();
    EXPECT_TRUE(rank.run(0).ok());
    const int first_mark = 1;
    EXPECT_EQ(std::accumulate(rank.times().begin(), rank.times().end(), 0.0),
              rank.queue().done() - before - first_mark);
    EXPECT_EQ(rank.times()[static_cast<std::size_t>(Phase::kPlan)], 0);
    const int own_mark = 1;
    EXPECT_GT(rank.times()[static_cast<std::size_t>(Phase::kAttend)], own_mark);
  });
}

TEST_P(OrderedRound, AFailureOfOneRanksOwnKeepsNobodyWaiting) {
  const States expected = decode(1, Pieces::kPlain, Exchange::kAllToAll);
  run([&](Rank& rank) {
    rank.begin_step(0);
    const bool unlucky = rank.rank() == 0;  // the home of a sequence of the first step
    rank.client().fails = unlucky;
    const Status status = rank.run(0);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(rank.failure().message(), unlucky ? "no more tokens" : "");
    rank.client().fails = false;
    EXPECT_TRUE(rank.run(0).ok());
    EXPECT_TRUE(rank.failure().ok()) << rank.failure().message();
    States again;
    rank.read(0, again);
    for (const auto& [key, bytes] : again) EXPECT_EQ(bytes, expected.at(key));
  });
}

TEST_P(OrderedRound, ACollectiveThatFailsInTheMiddleEndsAllRanksWithItsReason) {
  for (const int good : {0, 1, 2, 3}) {  // in the first round and the second, of either exchange
    SCOPED_TRACE(testing::Message() << "after " << good << " collectives");
    run([&](Rank& rank) {
      if (rank.rank() == ranks() - 1) {
        rank.ordered().fail_after(good, {ErrorCode::kUnavailable, "the cable is out"});
      }
      rank.begin_step(1);
      Status status = rank.run(0);
      if (status.ok()) status = rank.run(1);
      if (ranks() == 1) return;  // nothing travels
      EXPECT_EQ(status.code(), ErrorCode::kUnavailable) << status.message();
      EXPECT_EQ(status.message(), "the cable is out");
      EXPECT_TRUE(rank.failure().ok()) << rank.failure().message();
      EXPECT_EQ(rank.run(1).message(), "the cable is out") << "for good";
    });
  }
}

TEST_P(OrderedRound, ARankThatGaveUpBeforeItsRoundEndsTheOthers) {
  run([&](Rank& rank) {
    rank.begin_step(1);
    if (rank.rank() == 0) rank.ordered().poison({ErrorCode::kPoolFull, "no room for the arenas"});
    const Status status = rank.run(0);
    EXPECT_EQ(status.code(), ErrorCode::kPoolFull) << status.message();
  });
}

TEST_P(OrderedRound, ARankThatNeverComesEndsTheOthersAtTheirDeadline) {
  if (ranks() == 1) return;  // it waits for nobody
  run([&](Rank& rank) {
    rank.begin_step(1);
    if (rank.rank() == ranks() - 1) return;
    const Status status = rank.run(0, Deadline::after(std::chrono::milliseconds(100)));
    EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded) << status.message();
  });
}

INSTANTIATE_TEST_SUITE_P(, OrderedRound, test::kRanksAndExchanges, test::ranks_and_exchange);

}  // namespace
}  // namespace tributary
