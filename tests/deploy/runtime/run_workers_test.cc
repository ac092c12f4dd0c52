// Workers as threads share the machine's cores. For mpirun see program_test.py.
#include "deploy/runtime/run_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>

#include "core/base/error.h"
#include "core/pool/gather_all.h"
#include "deploy/runtime/cores.h"

namespace tributary {
namespace {

class LaunchTest : public testing::Test {
 protected:
  Launcher launcher_{nullptr, nullptr};
};

TEST_F(LaunchTest, WithoutALauncherOfRanksThisProcessIsThePool) {
  EXPECT_FALSE(launcher_.under_mpi());
  EXPECT_TRUE(launcher_.speaks());
  EXPECT_EQ(launcher_.workers(0), 1);
  EXPECT_EQ(launcher_.workers(5), 5);
}

TEST_F(LaunchTest, RunsEveryRankOnce) {
  for (const int workers : {0, 1, 2, 5}) {
    std::mutex mutex;
    std::multiset<int> ranks;
    std::set<std::string> names;
    launcher_.run(workers, [&](Communicator& communicator) {
      const std::lock_guard lock(mutex);
      ranks.insert(communicator.rank());
      names.emplace(communicator.name());
      EXPECT_EQ(communicator.size(), std::max(1, workers));
    });
    std::multiset<int> expected;
    for (int rank = 0; rank < std::max(1, workers); ++rank) expected.insert(rank);
    EXPECT_EQ(ranks, expected);
    EXPECT_EQ(names, std::set<std::string>{workers <= 1 ? "self" : "threads"});
  }
}

TEST_F(LaunchTest, ExceptionsThatAreNotOursPassToo) {
  EXPECT_THROW(launcher_.run(1, [](Communicator&) { throw std::length_error("x"); }),
               std::length_error);
  EXPECT_THROW(launcher_.run(3, [](Communicator&) { throw std::length_error("x"); }),
               std::length_error);
}

TEST_F(LaunchTest, AWorkerIsNamedOnceHoweverManyAgree) {
  std::mutex mutex;
  std::set<std::string> said;
  launcher_.run(3, [&](Communicator& communicator) {
    const auto soon = [] { return Deadline::after(std::chrono::seconds(60)); };
    // As a device that the workers open together, and what they then say of their start.
    const Status opened = status_of([&] {
      const Status own = communicator.rank() == 1 ? Status(ErrorCode::kIo, "a reason") : Status();
      (void)gather_values(communicator, own, 0, soon());
    });
    const Status end = status_of([&] { (void)gather_values(communicator, opened, 0, soon()); });
    const std::lock_guard lock(mutex);
    said.insert(end.message());
  });
  EXPECT_EQ(said, std::set<std::string>{"worker 1: a reason"});
}

int usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

TEST_F(LaunchTest, WorkersShareTheCoresOfTheirProcess) {
  if (own_cores().quota.cpus > 0) GTEST_SKIP() << "NOT TESTED: here a CPU quota decides";
  const int cores = usable_cores();
  for (const int workers : {1, 2, 3, 2 * cores}) {
    launcher_.run(workers, [&](Communicator& communicator) {
      EXPECT_EQ(threads_per_worker(communicator), std::max(1, cores / workers)) << workers;
    });
  }
}

/// Binds the calling thread to one core while it lives. What a launcher does to a process.
class BoundToOneCore {
 public:
  explicit BoundToOneCore(int index) {
    CPU_ZERO(&before_);
    sched_getaffinity(0, sizeof(before_), &before_);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &before_) && index-- == 0) CPU_SET(core, &one);
    }
    sched_setaffinity(0, sizeof(one), &one);
  }
  BoundToOneCore(const BoundToOneCore&) = delete;
  BoundToOneCore& operator=(const BoundToOneCore&) = delete;
  ~BoundToOneCore() { sched_setaffinity(0, sizeof(before_), &before_); }

 private:
  cpu_set_t before_;
};

TEST_F(LaunchTest, ACoreThatNoOtherWorkerMayUseIsNotShared) {
  const int cores = usable_cores();
  if (cores < 2) GTEST_SKIP() << "NOT TESTED: this process may use one core only";
  if (own_cores().quota.cpus > 0) GTEST_SKIP() << "NOT TESTED: here a CPU quota decides";
  // Rank 0 is bound to a core of its own, rank 1 may use all: it gets the others and half of one.
  launcher_.run(2, [&](Communicator& communicator) {
    if (communicator.rank() == 0) {
      const BoundToOneCore bound(0);
      EXPECT_EQ(threads_per_worker(communicator), 1);
    } else {
      EXPECT_EQ(threads_per_worker(communicator), std::max(1, cores - 1));
    }
  });
}

}  // namespace
}  // namespace tributary
