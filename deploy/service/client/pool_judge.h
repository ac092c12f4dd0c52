// Which pools, or sequences, a client that waits for a silent worker gives up.
#pragma once

#include <vector>

#include "deploy/service/client/control_plane.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// Asks the control plane about the sequences that wait for silent workers, and then the workers
/// again. A pool that both report lost is given up, so a control plane that is cut off from a
/// healthy pool ends nothing. A sequence that has ended says nothing about its pool: where the
/// worker is out of reach, its own calls end.
class PoolJudge {
 public:
  /// Both arguments outlive it.
  PoolJudge(ControlPlane& control, WorkerConnections& connections)
      : control_(control), connections_(connections) {}

  /// Waits for answers, seconds at most.
  void judge(const std::vector<SilentWorker>& silent);

 private:
  ControlPlane& control_;
  WorkerConnections& connections_;
};

}  // namespace tributary
