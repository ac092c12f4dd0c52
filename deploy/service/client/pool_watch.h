// Ends calls to a pool that is gone before their deadlines do. A stopped worker keeps its
// connections, so that nothing tells a client; the control plane hears every pool twice a second.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "deploy/service/client/control_plane.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// Asks the control plane about pools whose workers do not answer, and the workers once more: a
/// pool that both have lost is given up, and a control plane that is cut off from a healthy pool
/// ends nothing.
class PoolWatch {
 public:
  /// Watches from here on. Both outlive it.
  PoolWatch(ControlPlane& control, WorkerConnections& connections);
  /// After the last call. Waits for an answer that is on its way, seconds at most.
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
