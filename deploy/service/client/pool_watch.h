// Ends calls to a lost pool before their deadlines do. A stopped worker keeps its connections, so
// nothing tells a client; the control plane hears from every pool twice a second.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "deploy/service/client/control_plane.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// Asks the control plane about pools whose workers do not answer, and then the workers again. A
/// pool that both report lost is given up, so a control plane that is cut off from a healthy pool
/// ends nothing.
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
  void judge(const std::vector<SilentWorker>& silent);

  ControlPlane& control_;
  WorkerConnections& connections_;
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<SilentWorker> silent_;
  bool judging_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tributary
