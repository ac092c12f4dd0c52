// Promises of ranks as threads beyond the conformance suite: one cause for all ranks, and buffers
// that are free when a call has returned.
#include "comm/local/thread_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/local/run_ranks.h"
#include "core/interface/simulated_clock.h"
#include "core/interface/thread.h"
#include "tests/comm/collective_check.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
using testing_support::ample_deadline;

std::vector<std::size_t> counts(std::vector<std::size_t> list) {
  return list;
}

/// Runs `call` on each of two ranks and expects all to end with one and the same mismatch.
void expect_mismatch(const std::function<Status(Communicator&)>& call, const std::string& text) {
  std::array<Status, 2> statuses;
  run_ranks(2, [&](Communicator& communicator) {
    statuses[static_cast<std::size_t>(communicator.rank())] = call(communicator);
  });
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.message().find(text), std::string::npos) << status.message();
    EXPECT_EQ(status.message(), statuses[0].message());
  }
}

TEST(ThreadGroup, HandsOutEachRankOnce) {
  ThreadGroup group(2);
  const std::unique_ptr<Communicator> first = group.take(0);
  EXPECT_EQ(first->rank(), 0);
  EXPECT_EQ(first->size(), 2);
  const auto code_of = [&](int rank) {
    try {
      return group.take(rank) ? ErrorCode::kOk : ErrorCode::kInternal;
    } catch (const Error& error) {
      return error.code();
    }
  };
  EXPECT_EQ(code_of(0), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code_of(-1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(2), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(1), ErrorCode::kOk);
}

TEST(ThreadGroup, CommunicatorsOutliveTheGroup) {
  std::vector<std::unique_ptr<Communicator>> communicators;
  {
    ThreadGroup group(2);
    communicators.push_back(group.take(0));
    communicators.push_back(group.take(1));
  }
  std::vector<std::jthread> threads;
  threads.reserve(communicators.size());
  for (auto& communicator : communicators) {
    threads.emplace_back([&] { testing_support::check_broadcast(*communicator, 1, 0, 1000); });
  }
}

TEST(ThreadGroup, MismatchedCallsFailOnAllRanks) {
  std::array<std::array<std::byte, 16>, 2> memory{};
  const auto of = [&](const Communicator& c) {
    return std::span(memory[static_cast<std::size_t>(c.rank())]);
  };
  expect_mismatch(
      [&](Communicator& c) {
        if (c.rank() == 0) return c.broadcast(of(c), 0, ample_deadline());
        return c.all_gather({}, of(c), counts({16, 0}), ample_deadline());
      },
      "it calls all_gather, rank 0 calls broadcast");
  expect_mismatch([&](Communicator& c) { return c.broadcast(of(c), c.rank(), ample_deadline()); },
                  "broadcast of 16 bytes from 1, on rank 0 16 from 0");
  expect_mismatch(
      [&](Communicator& c) {
        return c.broadcast(of(c).first(c.rank() == 0 ? 16 : 8), 0, ample_deadline());
      },
      "broadcast of 8 bytes from 0, on rank 0 16 from 0");
  expect_mismatch(
      [&](Communicator& c) {
        const std::size_t other = c.rank() == 0 ? 5 : 6;
        std::vector<std::size_t> list(2, other);
        list[static_cast<std::size_t>(c.rank())] = 1;
        return c.all_gather(of(c).first(1), of(c).first(other + 1), list, ample_deadline());
      },
      "rank 1 does not match its peers: the counts of all_gather differ");
  expect_mismatch(
      [&](Communicator& c) {
        const std::size_t sent = c.rank() == 1 ? 3 : 0;
        return c.all_to_all(of(c).first(sent), counts({sent, 0}), {}, counts({0, 0}),
                            ample_deadline());
      },
      "rank 1 does not match its peers: all_to_all sends 3 bytes to rank 0, which expects 0");
}

TEST(ThreadGroup, MessageNamesTheMissingRanks) {
  run_ranks(4, [&](Communicator& communicator) {
    if (communicator.rank() % 2 == 1) return;
    std::array<std::byte, 1> data{};
    const Status status = communicator.broadcast(data, 0, Deadline::after(milliseconds(20)));
    EXPECT_EQ(status.code(), ErrorCode::kDeadlineExceeded);
    // One of the two that come is missing, too, when the other's deadline has passed before.
    EXPECT_THAT(status.message(), testing::ContainsRegex("missing: (1 3|1 2 3|0 1 3)$"));
  });
}

TEST(ThreadGroup, AShortDeadlineOfOneRankEndsAllAtOnce) {
  // Rank 2 never arrives, and the deadline of rank 1 is an hour away: the test ends only if rank 0
  // wakes it.
  run_ranks(3, [](Communicator& communicator) {
    if (communicator.rank() == 2) return;
    std::array<std::byte, 1> data{};
    const auto wait =
        communicator.rank() == 0 ? milliseconds(10) : milliseconds(std::chrono::hours(1));
    EXPECT_EQ(communicator.broadcast(data, 0, Deadline::after(wait)).code(),
              ErrorCode::kDeadlineExceeded);
  });
}

TEST(ThreadGroup, ALateRankGetsTheCauseOfItsPeers) {
  ThreadGroup group(2);
  const std::unique_ptr<Communicator> early = group.take(0);
  const std::unique_ptr<Communicator> late = group.take(1);
  std::array<std::byte, 1> data{};
  const Status first = early->broadcast(data, 0, Deadline::after(milliseconds(5)));
  const Status second = late->broadcast(data, 0, ample_deadline());
  EXPECT_EQ(first.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(second.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(first.message(), second.message());
}

TEST(ThreadGroup, ADestroyedCommunicatorEndsPeersAtTheirDeadline) {
  ThreadGroup group(2);
  const std::unique_ptr<Communicator> stays = group.take(0);
  group.take(1).reset();
  std::array<std::byte, 1> data{};
  EXPECT_EQ(stays->broadcast(data, 0, Deadline::after(milliseconds(5))).code(),
            ErrorCode::kDeadlineExceeded);
}

// In simulated time, where the ranks are known to wait, and end in the moment in which they are
// told.
TEST(ThreadGroup, PoisonFromOutsideWakesAllRanks) {
  SimulatedClock clock(1, Time(std::chrono::hours(1)), [](int) { return Duration::zero(); });
  clock.run([&] {
    ThreadGroup group(3, clock);
    std::vector<std::unique_ptr<Communicator>> communicators;
    communicators.push_back(group.take(0));
    communicators.push_back(group.take(1));  // rank 2 never arrives
    const Time poisoned = clock.now() + std::chrono::seconds(1);
    std::deque<Thread> threads;
    for (auto& communicator : communicators) {
      threads.emplace_back(clock, [&] {
        std::array<std::byte, 1> data{};
        const Status status =
            communicator->broadcast(data, 0, Deadline::after(clock.now(), std::chrono::minutes(1)));
        EXPECT_EQ(status.code(), ErrorCode::kWorkerFailed);
        EXPECT_EQ(status.message(), "the power is out");
        EXPECT_EQ(clock.now(), poisoned);
      });
    }
    std::mutex mutex;
    Condition nobody;
    std::unique_lock lock(mutex);
    clock.wait_until(nobody, lock, poisoned, [] { return false; });
    group.poison({ErrorCode::kWorkerFailed, "the power is out"});
    group.poison({ErrorCode::kInternal, "later"});
  });
}

// run_ranks() ends ranks by this, wherever they are.
TEST(ThreadGroup, PoisonFromOutsideReachesSurvivorsEvenThoseThatAreStillToCome) {
  ThreadGroup group(2);
  const std::unique_ptr<Communicator> whole = group.take(0);
  const std::vector<int> alone{0};
  const std::unique_ptr<Communicator> before = whole->survivors(alone, 1);
  group.poison({ErrorCode::kWorkerFailed, "the power is out"});
  const std::unique_ptr<Communicator> after = whole->survivors(alone, 1);
  for (Communicator* survivors : {before.get(), after.get()}) {
    EXPECT_EQ(survivors->broadcast({}, 0, ample_deadline()).message(), "the power is out");
  }
}

TEST(ThreadGroup, MismatchedSurvivorsAreComparedWithTheFirstOfThem) {
  run_ranks(3, [](Communicator& whole) {
    if (whole.rank() == 0) return;
    const auto survivors = whole.survivors(std::vector<int>{1, 2}, 1);
    std::array<std::byte, 8> data{};
    const std::size_t bytes = whole.rank() == 1 ? 8 : 4;
    const Status status = survivors->broadcast(std::span(data).first(bytes), 1, ample_deadline());
    EXPECT_EQ(status.message(),
              "rank 2 does not match its peers: broadcast of 4 bytes from 1, on rank 1 8 from 1");
  });
}

// Deadlines pass at every point of a call, most often while ranks copy; then the call's buffers are
// overwritten and freed at once. The sanitizers watch, and a call is ok on all ranks or on none.
TEST(ThreadGroup, BuffersAreFreeWhenAFailedCallReturns) {
  constexpr int kRanks = 4;
  constexpr std::size_t kBytes = 1000001;
  std::mt19937_64 random(5);
  for (int round = 0; round < 25; ++round) {
    std::array<std::chrono::microseconds, kRanks> waits{};
    for (auto& wait : waits) wait = std::chrono::microseconds(500 + random() % 4000);
    std::array<int, kRanks> completed{};
    std::array<Status, kRanks> ends;
    run_ranks(kRanks, [&](Communicator& communicator) {
      const auto self = static_cast<std::size_t>(communicator.rank());
      const std::vector<std::size_t> list(kRanks, kBytes);
      std::vector<std::byte> send(kBytes, static_cast<std::byte>(self + 1));
      std::vector<std::byte> recv(kBytes * kRanks);
      // All buffers are there when the time starts to run.
      testing_support::check_broadcast(communicator, 0, 0, 1);
      const Deadline deadline = Deadline::after(waits[self]);
      for (;;) {
        ends[self] = communicator.all_gather(send, recv, list, deadline);
        if (!ends[self].ok()) break;
        ++completed[self];
        for (std::size_t from = 0; from < kRanks; ++from) {
          EXPECT_EQ(recv[from * kBytes], static_cast<std::byte>(from + 1));
          EXPECT_EQ(recv[(from + 1) * kBytes - 1], static_cast<std::byte>(from + 1));
        }
      }
      std::memset(send.data(), 0xdd, send.size());
    });
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(ends[rank].code(), ErrorCode::kDeadlineExceeded);
      EXPECT_EQ(ends[rank].message(), ends[0].message());
      EXPECT_EQ(completed[rank], completed[0]);
    }
  }
}

}  // namespace
}  // namespace tributary
