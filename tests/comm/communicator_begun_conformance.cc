// Collectives in two calls. Everything here runs on every rank.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "tests/comm/collective_check.h"
#include "tests/comm/communicator_conformance.h"

namespace tributary::testing_support {

TEST_P(CommunicatorConformance, WhatIsBegunEndsInItsOrder) {
  run([](Communicator& communicator) {
    std::mt19937_64 random(5);
    const auto self = static_cast<std::size_t>(communicator.rank());
    std::uint64_t expected = 0;
    for (std::uint64_t call = 0; call < 40; ++call) {
      // Also blocks of many pieces; ranks come to end() at different times.
      const std::size_t most = call % 8 == 0 ? 600'000 : 3000;
      const Matrix first = ragged_matrix(random, communicator.size(), most);
      const Matrix second = ragged_matrix(random, communicator.size(), most);
      const Matrix third = ragged_matrix(random, communicator.size(), most);
      for (const Matrix* counts : {&first, &second, &third}) {
        for (std::size_t to = 0; to < counts->size(); ++to) {
          if (to != self) expected += (*counts)[self][to];
        }
      }
      BegunAllToAll one(communicator, 3 * call, first);
      BegunAllToAll other(communicator, 3 * call + 1, second);
      if (call % static_cast<std::uint64_t>(communicator.size()) == self) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      one.end();
      BegunAllToAll last(communicator, 3 * call + 2, third);
      other.end();
      last.end();
      check_all_gather(communicator, call, equal_counts(communicator.size(), 10));
      if (testing::Test::HasFatalFailure()) return;
    }
    EXPECT_EQ(communicator.traffic()[CollectiveKind::kAllToAll], expected);
  });
}

TEST_P(CommunicatorConformance, BeginAndEndOutOfPlaceEndIt) {
  const auto begin = [](Communicator& c) {
    static std::array<std::byte, 0> none;
    const std::vector<std::size_t> counts = equal_counts(c.size(), 0);
    return c.begin({.kind = CollectiveKind::kAllGather, .send = none, .recv_counts = counts},
                   ample_deadline());
  };
  run([&](Communicator& communicator) {
    EXPECT_EQ(communicator.end(ample_deadline()).code(), ErrorCode::kInvalidArgument);
    expect_dead(communicator, ErrorCode::kInvalidArgument, "has begun none");
  });
  run([&](Communicator& communicator) {
    (void)begin(communicator);  // a faster peer may have failed already
    EXPECT_EQ(small_call(communicator).code(), ErrorCode::kInvalidArgument);
    expect_dead(communicator, ErrorCode::kInvalidArgument, "was begun and has not ended");
    EXPECT_EQ(begin(communicator).code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(communicator.end(ample_deadline()).code(), ErrorCode::kInvalidArgument);
  });
  run([&](Communicator& communicator) {
    (void)begin(communicator);
    (void)begin(communicator);
    EXPECT_EQ(begin(communicator).code(), ErrorCode::kInvalidArgument);
    expect_dead(communicator, ErrorCode::kInvalidArgument, "2 collectives");
  });
}

TEST_P(CommunicatorConformance, AFailedPeerEndsWhatWasBegun) {
  if (ranks() == 1) return;
  run([](Communicator& communicator) {
    const auto counts = Matrix(static_cast<std::size_t>(communicator.size()),
                               equal_counts(communicator.size(), 300'000));
    if (communicator.rank() == 0) {
      communicator.poison({ErrorCode::kWorkerFailed, "page 812 is gone"});
    } else {
      std::vector<std::byte> send(300'000 * counts.size());
      std::vector<std::byte> recv(send.size());
      Status status = communicator.begin({.kind = CollectiveKind::kAllToAll,
                                          .send = send,
                                          .recv = recv,
                                          .send_counts = counts[0],
                                          .recv_counts = counts[0]},
                                         ample_deadline());
      if (status.ok()) status = communicator.end(ample_deadline());
      if (status.ok()) status = communicator.complete(ample_deadline());
      EXPECT_EQ(status.code(), ErrorCode::kWorkerFailed) << status.message();
    }
    expect_dead(communicator, ErrorCode::kWorkerFailed, "page 812 is gone");
  });
}

}  // namespace tributary::testing_support
