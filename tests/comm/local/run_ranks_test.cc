// Exceptions and rank counts of run_ranks.
#include "comm/local/run_ranks.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>

#include "comm/local/thread_group.h"
#include "tests/comm/collective_check.h"

namespace tributary {
namespace {

using testing_support::ample_deadline;

Status meet(Communicator& communicator) {
  std::array<std::byte, 1> data{};
  return communicator.broadcast(data, 0, ample_deadline());
}

TEST(RunRanks, CallsEveryRankOnce) {
  std::array<std::atomic<int>, 5> calls{};
  run_ranks(5, [&](Communicator& communicator) {
    EXPECT_EQ(communicator.size(), 5);
    EXPECT_EQ(communicator.name(), "threads");
    ++calls[static_cast<std::size_t>(communicator.rank())];
    EXPECT_TRUE(meet(communicator).ok());
  });
  for (const auto& count : calls) EXPECT_EQ(count, 1);
}

TEST(RunRanks, TheFirstExceptionEndsTheOthersAndIsThrown) {
  for (int thrower = 0; thrower < 4; ++thrower) {
    std::atomic<int> ended{0};
    try {
      run_ranks(4, [&](Communicator& communicator) {
        meet(communicator).throw_if_error();
        if (communicator.rank() == thrower) {
          throw Error(ErrorCode::kPoolFull, "no page left");
        }
        const Status status = meet(communicator);
        EXPECT_EQ(status.code(), ErrorCode::kPoolFull);
        EXPECT_EQ(status.message(), fmt::format("rank {}: no page left", thrower));
        ++ended;
        status.throw_if_error();  // a consequence; must not hide the cause
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPoolFull);
      EXPECT_STREQ(error.what(), "no page left");
    }
    EXPECT_EQ(ended, 3);
  }
}

TEST(RunRanks, ForeignExceptionsAreWorkerFailures) {
  EXPECT_THROW(run_ranks(2,
                         [](Communicator& communicator) {
                           if (communicator.rank() == 1) throw std::length_error("odd");
                           const Status status = meet(communicator);
                           EXPECT_EQ(status.code(), ErrorCode::kWorkerFailed);
                           EXPECT_EQ(status.message(), "rank 1: odd");
                         }),
               std::length_error);
  EXPECT_THROW(run_ranks(2,
                         [](Communicator& communicator) {
                           if (communicator.rank() == 0) throw 7;
                           EXPECT_EQ(meet(communicator).code(), ErrorCode::kWorkerFailed);
                         }),
               int);
}

TEST(RunRanks, RefusesBadNumbersOfRanks) {
  for (const int ranks : {-1, 0, ThreadGroup::kMaxRanks + 1}) {
    try {
      run_ranks(ranks, [](Communicator&) { ADD_FAILURE() << "called"; });
      ADD_FAILURE() << "nothing was thrown for " << ranks;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(std::to_string(ranks)), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace tributary
