#include "comm/tcp/shared_loop.h"

#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <vector>

namespace tributary::tcp {
namespace {

namespace asio = boost::asio;

/// Bounds a hang, and decides nothing.
constexpr std::chrono::minutes kPatience{1};

Time later() {
  return std::chrono::steady_clock::now() + kPatience;
}

class SharedLoopTest : public testing::TestWithParam<bool> {
 protected:
  ~SharedLoopTest() override {
    asio::post(io_, [this] { work_.reset(); });
    loop_.end();
    own_.join();
  }
  /// The thread on which the loop runs what is posted now.
  std::thread::id runner() {
    std::promise<std::thread::id> who;
    asio::post(io_, [&] { who.set_value(std::this_thread::get_id()); });
    return who.get_future().get();
  }
  /// A guest on another thread, until leave().
  struct Guest {
    explicit Guest(SharedLoop& loop)
        : visit(std::async(std::launch::async, [this, &loop] {
            thread = std::this_thread::get_id();
            return loop.work_until(later(), [this] {
              is_in = true;
              return leaves.load();
            });
          })) {
      while (!is_in) std::this_thread::yield();
    }
    std::atomic<bool> is_in = false;
    std::atomic<bool> leaves = false;
    std::thread::id thread;
    std::future<bool> visit;  // goes first
  };
  bool leave(Guest& guest) {
    guest.leaves = true;
    loop_.wake();
    return guest.visit.get();
  }

  asio::io_context io_{1};
  std::optional<asio::executor_work_guard<asio::io_context::executor_type>> work_{
      io_.get_executor()};
  SharedLoop loop_{io_, GetParam()};
  std::thread own_{[this] { loop_.run(); }};
};

TEST_P(SharedLoopTest, TheOwnThreadRunsItWhileNobodyIsThere) {
  EXPECT_EQ(runner(), own_.get_id());
}

TEST_P(SharedLoopTest, AGuestRunsItUntilItIsDone) {
  for (int i = 0; i < 3; ++i) {
    Guest guest(loop_);
    EXPECT_EQ(runner(), guest.thread);
    EXPECT_EQ(runner(), guest.thread);
    EXPECT_TRUE(leave(guest));
    EXPECT_EQ(runner(), own_.get_id()) << "after its absence";
  }
}

TEST_P(SharedLoopTest, AGuestIsAskedAfterEachPieceOfWork) {
  bool done = false;
  asio::post(io_, [&] { asio::post(io_, [&] { done = true; }); });
  EXPECT_TRUE(loop_.work_until(later(), [&] { return done; }));
}

TEST_P(SharedLoopTest, AGuestThatLeavesCallsWhatIsReadyButNotAllOfMuch) {
  for (const int pieces : {2, 100}) {
    std::atomic<int> by_guest = 0;
    std::atomic<int> run = 0;
    EXPECT_TRUE(loop_.work_until(later(), [&] {
      for (int i = 0; i < pieces; ++i) {
        asio::post(io_, [&] {
          if (std::this_thread::get_id() != own_.get_id()) ++by_guest;
          ++run;
        });
      }
      return true;
    }));
    while (run < pieces) std::this_thread::yield();
    if (pieces == 2) {
      EXPECT_EQ(by_guest, pieces) << "nobody else wakes for it";
    } else {
      EXPECT_LT(by_guest, pieces) << "the own thread takes over";
    }
  }
}

TEST_P(SharedLoopTest, AGuestLeavesWhenItsTimeIsOver) {
  EXPECT_TRUE(loop_.work_until(std::chrono::steady_clock::now() + std::chrono::milliseconds(1),
                               [] { return false; }));
  EXPECT_TRUE(loop_.work_until(Time{}, [] { return false; }));
}

TEST_P(SharedLoopTest, ThereIsOneGuestAtATime) {
  Guest guest(loop_);
  EXPECT_FALSE(loop_.work_until(later(), [] { return false; }));
  EXPECT_EQ(runner(), guest.thread);
  EXPECT_TRUE(leave(guest));
  EXPECT_EQ(runner(), own_.get_id());
  EXPECT_TRUE(loop_.work_until(later(), [] { return true; }));
}

TEST_P(SharedLoopTest, ManyWhoComeAndGoLoseNoWork) {
  std::atomic<int> run = 0;
  std::vector<std::jthread> threads;
  constexpr int kThreads = 3;
  constexpr int kTimes = 500;
  threads.reserve(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTimes; ++i) {
        std::atomic<bool> mine = false;
        asio::post(io_, [&] {
          ++run;
          mine = true;
          loop_.wake();
        });
        while (!mine) {
          if (!loop_.work_until(later(), [&] { return mine.load(); })) std::this_thread::yield();
        }
      }
    });
  }
  threads.clear();
  EXPECT_EQ(run, kThreads * kTimes);
}

TEST_P(SharedLoopTest, WhoWasNotLetInIsServedAfterEachVisit) {
  for (int i = 0; i < 3; ++i) {
    Guest guest(loop_);
    if (i == 0) {
      EXPECT_FALSE(loop_.work_until(later(), [] { return false; }));
    }
    EXPECT_TRUE(leave(guest));
    EXPECT_EQ(runner(), own_.get_id());
  }
}

TEST_P(SharedLoopTest, NobodyIsLetInAtTheEnd) {
  loop_.end();
  EXPECT_FALSE(loop_.work_until(later(), [] { return false; }));
}

INSTANTIATE_TEST_SUITE_P(Idle, SharedLoopTest, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Polls" : "Sleeps"; });

}  // namespace
}  // namespace tributary::tcp
