// Processes that come in the place of lost ranks, while the others go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/mesh/mesh_communicator.h"
#include "core/interface/clock.h"
#include "core/pool/gather_all.h"
#include "tests/comm/collective_check.h"
#include "tests/comm/mesh/mesh_ranks.h"

namespace tributary::testing_support {
namespace {

/// What ranks tell each other at a start: a word of rank 0, and one of each.
struct Start {
  int root = 0;
  std::vector<int> words;
};

Start make_start(Communicator& communicator, int word, Deadline deadline = ample_deadline()) {
  Start start{.root = communicator.rank() == 0 ? 1000 : 0, .words = {}};
  communicator.broadcast(std::as_writable_bytes(std::span(&start.root, 1)), 0, deadline)
      .throw_if_error();
  gather_all(communicator, word, start.words, deadline).throw_if_error();
  return start;
}

class MeshDoorTest : public testing::TestWithParam<MeshNetwork> {
 protected:
  [[nodiscard]] std::unique_ptr<Communicator> join(int rank) {
    MeshConfig config = place_.config(rank, kRanks);
    if (rank == 0) config.door = &door_;
    return join_mesh(config, place_.transport(), ample_deadline(), steady_clock());
  }
  void each(const std::vector<int>& ranks, const std::function<void(int)>& body) {
    std::vector<std::future<void>> calls;
    calls.reserve(ranks.size());
    for (const int rank : ranks) {
      calls.push_back(std::async(std::launch::async, [&body, rank] { body(rank); }));
    }
    for (auto& call : calls) call.get();
  }
  [[nodiscard]] std::unique_ptr<Communicator>& at(int rank) {
    return all_[static_cast<std::size_t>(rank)];
  }
  void start_all() {
    each({0, 1, 2}, [&](int rank) {
      at(rank) = join(rank);
      EXPECT_THAT(make_start(*at(rank), 10 + rank).words, testing::ElementsAre(10, 11, 12));
    });
    door_.started();
  }
  /// As a killed process. Its slot is open then.
  void lose(int rank) {
    at(rank).reset();
    std::vector<int> left{0, 1, 2};
    std::erase(left, rank);
    ++generation_;
    each(left, [&](int survivor) {
      while (at(survivor)->look_for_failure().ok()) std::this_thread::yield();
      at(survivor) = at(survivor)->survivors(left, generation_);
      check_gather(*at(survivor), generation_, 100);
    });
    door_.open(rank);
  }
  /// Another process in that slot makes the calls of the start.
  void come(int rank, int word) {
    auto newcomer = std::async(std::launch::async, [&] {
      at(rank) = join(rank);
      const Start start = make_start(*at(rank), word);
      EXPECT_EQ(start.root, 1000);
      words_[static_cast<std::size_t>(rank)] = word;
      EXPECT_EQ(start.words, words_);
    });
    EXPECT_EQ(door_.wait(), rank);
    EXPECT_TRUE(door_.let_in(ample_deadline()).ok());
    newcomer.get();
  }
  /// It takes part.
  void take_in() {
    const std::vector<int> members{0, 1, 2};
    ++generation_;
    each(members, [&](int rank) {
      at(rank) = at(rank)->survivors(members, generation_);
      EXPECT_THAT(at(rank)->members(), testing::ElementsAre(0, 1, 2));
      check_gather(*at(rank), generation_, 100);
      check_gather(*at(rank), generation_, 3000);
    });
  }
  static void check_gather(Communicator& communicator, std::uint64_t seed, int count) {
    std::vector<int> mine(static_cast<std::size_t>(count));
    std::iota(mine.begin(), mine.end(), communicator.rank() + static_cast<int>(seed));
    std::vector<int> all;
    ASSERT_TRUE(gather_all(communicator, std::span<const int>(mine), all, ample_deadline()).ok());
    for (const int member : communicator.members()) {
      EXPECT_EQ(all[static_cast<std::size_t>(member * count)], member + static_cast<int>(seed));
    }
  }

  static constexpr int kRanks = 3;
  MeshPlace place_{GetParam()};
  MeshDoor door_;
  std::array<std::unique_ptr<Communicator>, kRanks> all_;  // they end before the door
  std::vector<int> words_{10, 11, 12};
  std::uint64_t generation_ = 0;
};

TEST_P(MeshDoorTest, AnotherProcessTakesTheSlotOfALostOne) {
  start_all();
  lose(1);
  come(1, 21);
  take_in();
  // Any slot, again and again; what a newcomer said at its start is known to the next one.
  lose(2);
  come(2, 22);
  take_in();
  lose(1);
  come(1, 31);
  take_in();
}

TEST_P(MeshDoorTest, TheOthersGoOnUntilTheyTakeItIn) {
  start_all();
  lose(2);
  come(2, 22);
  each({0, 1}, [&](int rank) { check_gather(*at(rank), 5, 1000); });
  take_in();
}

TEST_P(MeshDoorTest, OneThatIsLostOnItsWayMakesRoomForAnother) {
  start_all();
  lose(1);
  auto newcomer = join(1);
  EXPECT_EQ(door_.wait(), 1);
  newcomer.reset();  // killed
  EXPECT_EQ(door_.let_in(ample_deadline()).code(), ErrorCode::kWorkerFailed);
  come(1, 21);
  // Also after it has made all calls, and before it is taken in.
  at(1).reset();
  come(1, 31);
  take_in();
}

TEST_P(MeshDoorTest, OneWhoseCallsAreNotThoseOfTheStartIsTurnedAway) {
  start_all();
  lose(1);
  auto newcomer = std::async(std::launch::async, [&] {
    const auto other = join(1);
    std::vector<int> words;
    const Status status = gather_all(*other, 21, words, ample_deadline());
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.message();
  });
  EXPECT_EQ(door_.wait(), 1);
  EXPECT_EQ(door_.let_in(ample_deadline()).code(), ErrorCode::kInvalidArgument);
  newcomer.get();
  come(1, 21);
  take_in();
}

TEST_P(MeshDoorTest, ASlotThatIsNotOpenIsNotTaken) {
  start_all();
  MeshConfig config = place_.config(1, kRanks);
  const auto refusal = [&] {
    return status_of([&] {
      (void)join_mesh(config, place_.transport(), Deadline::after(std::chrono::milliseconds(200)),
                      steady_clock());
    });
  };
  EXPECT_EQ(refusal().code(), ErrorCode::kAlreadyExists);
  at(1).reset();
  while (at(0)->look_for_failure().ok()) std::this_thread::yield();
  const Status status = refusal();
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), testing::HasSubstr("rank 1 was lost, and its slot is not open"));
}

TEST_P(MeshDoorTest, ClosedItEndsTheWait) {
  start_all();
  auto waiting = std::async(std::launch::async, [&] { return door_.wait(); });
  door_.close();
  EXPECT_EQ(waiting.get(), std::nullopt);
}

TEST_P(MeshDoorTest, ClosedItLetsNobodyIn) {
  start_all();
  lose(1);
  const auto newcomer = join(1);  // and makes no call
  EXPECT_EQ(door_.wait(), 1);
  auto letting = std::async(std::launch::async, [&] { return door_.let_in(ample_deadline()); });
  door_.close();
  EXPECT_EQ(letting.get().code(), ErrorCode::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Networks, MeshDoorTest,
                         testing::Values(MeshNetwork::kLocal, MeshNetwork::kTcp),
                         [](const auto& tested) {
                           return tested.param == MeshNetwork::kTcp ? "Tcp" : "Local";
                         });

}  // namespace
}  // namespace tributary::testing_support
