// Parallel loops: every unit once, exceptions, reuse.
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace tributary::cpu {
namespace {

TEST(ThreadPool, RunsEveryUnitOnceOnAThreadOfItsOwnNumber) {
  for (const int threads : {1, 2, 4}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (std::size_t units = 0; units < 200; units += 7) {
      std::vector<std::atomic<int>> calls(units);
      std::vector<std::atomic<int>> busy(static_cast<std::size_t>(threads));
      pool.for_each(units, [&](std::size_t unit, int thread) {
        EXPECT_EQ(busy.at(static_cast<std::size_t>(thread)).fetch_add(1), 0);
        calls.at(unit).fetch_add(1);
        busy.at(static_cast<std::size_t>(thread)).fetch_sub(1);
      });
      for (const auto& count : calls) ASSERT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPool, OneThreadRunsInOrderOnTheCaller) {
  ThreadPool pool(1);
  std::vector<std::size_t> order;
  pool.for_each(5, [&](std::size_t unit, int thread) {
    EXPECT_EQ(thread, 0);
    order.push_back(unit);
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 3, 4}));
}

TEST(ThreadPool, AllThreadsTakePart) {
  ThreadPool pool(3);
  // Each unit waits until all three are inside: only three threads can end this loop.
  std::atomic<int> inside{0};
  pool.for_each(3, [&](std::size_t, int) {
    inside.fetch_add(1);
    while (inside.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(inside.load(), 3);
}

TEST(ThreadPool, AnExceptionReachesTheCallerAndThePoolStaysUsable) {
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    for (int round = 0; round < 20; ++round) {
      try {
        pool.for_each(50, [&](std::size_t unit, int) {
          if (unit == 17) throw std::runtime_error("unit 17");
        });
        FAIL() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_EQ(error.what(), std::string("unit 17"));
      }
      std::atomic<int> calls{0};
      pool.for_each(50, [&](std::size_t, int) { calls.fetch_add(1); });
      EXPECT_EQ(calls.load(), 50);
    }
  }
}

}  // namespace
}  // namespace tributary::cpu
