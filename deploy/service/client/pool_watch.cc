#include "deploy/service/client/pool_watch.h"

#include <fmt/format.h>

#include <chrono>
#include <set>
#include <string>
#include <utility>

#include "deploy/service/client/worker_call.h"

namespace tributary {
namespace {

/// A control plane asks the pool, and answers by its pool timeout (1.5 s) if the pool is gone.
constexpr std::chrono::milliseconds kAskTimeout{2'000};
/// The limit for any answer of a worker, through its leader: longer than a round.
constexpr std::chrono::milliseconds kWorkerTimeout{1'000};

/// Any answer will do, even a refusal: a renewal changes nothing.
std::size_t ask_worker(WorkerCall& call, const SilentWorker& worker) {
  return call.send({.address = worker.address, .greetings = {worker.greeting}},
                   wire::Control{.items = {{.op = wire::ControlOp::kRenew,
                                            .sequence_id = worker.greeting.sequence_id}}});
}

}  // namespace

PoolWatch::PoolWatch(ControlPlane& control, WorkerConnections& connections)
    : control_(control), connections_(connections), thread_([this] { run(); }) {
  connections_.watch([this](std::vector<SilentWorker> silent) {
    {
      const std::scoped_lock lock(mutex_);
      if (judging_) return;  // who still waits afterwards says so again
      silent_ = std::move(silent);
    }
    changed_.notify_all();
  });
}

PoolWatch::~PoolWatch() {
  connections_.watch({});
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void PoolWatch::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || !silent_.empty(); });
    if (stop_) return;
    const std::vector<SilentWorker> silent = std::exchange(silent_, {});
    judging_ = true;
    lock.unlock();
    judge(silent);
    lock.lock();
    judging_ = false;
  }
}

void PoolWatch::judge(const std::vector<SilentWorker>& silent) {
  struct Lost {
    std::size_t index = 0;
    Error because;
  };
  const Deadline deadline = Deadline::after(kAskTimeout);
  WorkerCall workers(connections_, Deadline::after(kWorkerTimeout));
  for (const SilentWorker& worker : silent) static_cast<void>(ask_worker(workers, worker));
  std::vector<Lost> lost;
  std::set<std::string> known;  // to the control plane; one answer names all workers of its pool
  for (std::size_t i = 0; i < silent.size(); ++i) {
    if (known.contains(silent[i].address)) continue;
    try {
      const SequenceHandle there = control_.query(silent[i].greeting.sequence_id, deadline);
      known.insert(there.addresses.begin(), there.addresses.end());
    } catch (const Error& error) {
      // Any other answer says nothing about the pool: deadlines end calls that are lost.
      const bool unknown = error.code() == ErrorCode::kNotFound;
      if (unknown || error.code() == ErrorCode::kPoolLost) lost.push_back({i, error});
    }
  }
  for (const Lost& pool : lost) {
    const std::string& address = silent[pool.index].address;
    const bool gone = connections_.unreachable(address);
    // A worker that is only slow may hold sequences beside the one that has ended.
    if (!gone && (pool.because.code() == ErrorCode::kNotFound || workers.wait(pool.index).ok())) {
      continue;
    }
    connections_.give_up(address, {ErrorCode::kPoolLost,
                                   fmt::format("{}, and the control plane says: {}",
                                               gone ? "it cannot be reached" : "it does not answer",
                                               pool.because.what())});
  }
}

}  // namespace tributary
