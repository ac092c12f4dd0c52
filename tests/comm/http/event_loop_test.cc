#include "comm/http/event_loop.h"

#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

namespace tributary {
namespace {

using namespace std::chrono_literals;

TEST(EventLoop, RunsWhatIsPostedInOrder) {
  EventLoop loop;
  std::vector<int> seen;
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) loop.post([&seen, i] { seen.push_back(i); });
    loop.post([&] { loop.stop(); });
  });
  loop.run();
  other.join();
  ASSERT_EQ(seen.size(), 100U);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
}

TEST(EventLoop, AStopBeforeTheRunCounts) {
  EventLoop loop;
  loop.stop();
  loop.run();
  bool ran = false;
  loop.post([&] {
    ran = true;
    loop.stop();
  });
  loop.run();
  EXPECT_TRUE(ran);
}

TEST(EventLoop, ExceptionsEndTheRun) {
  EventLoop loop;
  loop.post([] { throw std::runtime_error("a bug"); });
  EXPECT_THROW(loop.run(), std::runtime_error);
  loop.post([&] { loop.stop(); });
  loop.run();
}

TEST(EventLoop, TimersFireInTheirOrder) {
  EventLoop loop;
  std::vector<int> seen;
  const auto last = loop.after(1h, [&] { seen.push_back(3); });
  const auto sooner = loop.after(5ms, [&] { seen.push_back(1); });
  const auto later = loop.after(60ms, [&] {
    seen.push_back(2);
    loop.stop();
  });
  loop.run();
  EXPECT_EQ(seen, (std::vector<int>{1, 2}));
}

TEST(EventLoop, EveryRepeatsUntilItsHandleGoes) {
  EventLoop loop;
  int calls = 0;
  std::unique_ptr<EventLoop::Timer> end;
  std::unique_ptr<EventLoop::Timer> timer = loop.every(2ms, [&] {
    if (++calls == 3) {
      timer = nullptr;  // from inside its own work
      end = loop.after(30ms, [&] { loop.stop(); });
    }
  });
  loop.run();
  EXPECT_EQ(calls, 3);
}

TEST(EventLoop, ADestroyedTimerDoesNotFire) {
  EventLoop loop;
  bool fired = false;
  auto timer = loop.after(1ms, [&] { fired = true; });
  std::this_thread::sleep_for(5ms);  // it has expired, and is destroyed before its work is called
  timer = nullptr;
  const auto end = loop.after(10ms, [&] { loop.stop(); });
  loop.run();
  EXPECT_FALSE(fired);
}

TEST(EventLoop, TerminationIsCalledOnce) {
  EventLoop loop;
  int calls = 0;
  std::unique_ptr<EventLoop::Timer> end;
  const auto handle = loop.on_termination([&] {
    ++calls;
    std::raise(SIGINT);  // absorbed
    end = loop.after(30ms, [&] { loop.stop(); });
  });
  loop.post([] { std::raise(SIGTERM); });
  loop.run();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace tributary
