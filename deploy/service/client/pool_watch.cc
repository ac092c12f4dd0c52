#include "deploy/service/client/pool_watch.h"

#include <utility>

namespace tributary {

PoolWatch::PoolWatch(ControlPlane& control, WorkerConnections& connections)
    : connections_(connections),
      clock_(connections.clock()),
      judge_(control, connections),
      thread_(clock_, [this] { run(); }) {
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
    clock_.wait(changed_, lock, [this] { return stop_ || !silent_.empty(); });
    if (stop_) return;
    const std::vector<SilentWorker> silent = std::exchange(silent_, {});
    judging_ = true;
    lock.unlock();
    judge_.judge(silent);
    lock.lock();
    judging_ = false;
  }
}

}  // namespace tributary
