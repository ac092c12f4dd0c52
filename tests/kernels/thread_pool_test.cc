// Parallel loops: every unit once, exceptions, reuse, pinning.
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>
#if defined(__linux__)
#include <sched.h>
#endif

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

#if defined(__linux__)
std::vector<int> own_cpus() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  EXPECT_EQ(sched_getaffinity(0, sizeof usable, &usable), 0);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &usable)) cpus.push_back(cpu);
  }
  return cpus;
}

void run_on(const std::vector<int>& cpus) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  for (const int cpu : cpus) CPU_SET(static_cast<std::size_t>(cpu), &usable);
  ASSERT_EQ(sched_setaffinity(0, sizeof usable, &usable), 0);
}

/// The CPUs that each thread of a loop may use, and the one that it is on.
struct Seen {
  std::vector<int> usable;
  int cpu = -1;
};
std::vector<Seen> threads_of(ThreadPool& pool) {
  std::vector<Seen> seen(static_cast<std::size_t>(pool.threads()));
  std::atomic<int> inside{0};
  pool.for_each(seen.size(), [&](std::size_t, int thread) {
    seen.at(static_cast<std::size_t>(thread)) = {own_cpus(), sched_getcpu()};
    inside.fetch_add(1);
    while (inside.load() < pool.threads()) std::this_thread::yield();
  });
  return seen;
}

TEST(ThreadPool, ThreadsArePinnedWhereEachHasACpuOfItsOwn) {
  const std::vector<int> before = own_cpus();
  if (before.size() < 2) GTEST_SKIP() << "one CPU usable";
  const std::vector<int> two(before.begin(), before.begin() + 2);
  run_on(two);
  {
    ThreadPool pool(2);
    EXPECT_EQ(pool.cpus(), two);
    // From either CPU: the caller keeps its affinity.
    for (const int start : two) {
      run_on({start});
      run_on(two);
      const std::vector<Seen> seen = threads_of(pool);
      EXPECT_EQ(seen[0].usable, two);
      EXPECT_EQ(seen[1].usable, std::vector{two[1]});
      EXPECT_EQ(seen[1].cpu, two[1]);
    }
    // A caller that may only use the other thread's CPU shares it.
    run_on({two[1]});
    EXPECT_EQ(threads_of(pool)[0].cpu, two[1]);
    run_on(two);
  }
  // With one CPU less or more than threads, where pinning would do harm.
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    EXPECT_TRUE(pool.cpus().empty()) << threads;
    for (const Seen& seen : threads_of(pool)) EXPECT_EQ(seen.usable, two) << threads;
  }
  run_on(before);
}
#endif

}  // namespace
}  // namespace tributary::cpu
