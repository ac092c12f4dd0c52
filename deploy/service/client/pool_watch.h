// Ends calls to a lost pool before their deadlines do. A stopped worker keeps its connections, so
// nothing tells a client; the control plane hears from every pool twice a second.
#pragma once

#include <mutex>
#include <vector>

#include "core/interface/clock.h"
#include "core/interface/condition.h"
#include "core/interface/thread.h"
#include "deploy/service/client/pool_judge.h"

namespace tributary {

/// Lets a PoolJudge judge in a thread of its own.
class PoolWatch {
 public:
  /// Starts to watch. Both arguments outlive it.
  PoolWatch(ControlPlane& control, WorkerConnections& connections);
  /// Destroy it after the last call. Waits for a pending answer, seconds at most.
  ~PoolWatch();
  PoolWatch(const PoolWatch&) = delete;
  PoolWatch& operator=(const PoolWatch&) = delete;

 private:
  void run();

  WorkerConnections& connections_;
  Clock& clock_;
  PoolJudge judge_;
  std::mutex mutex_;  // guards what follows
  Condition changed_;
  std::vector<SilentWorker> silent_;
  bool judging_ = false;
  bool stop_ = false;
  Thread thread_;  // goes last: it uses the rest
};

}  // namespace tributary
