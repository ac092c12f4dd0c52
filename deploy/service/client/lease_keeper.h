// Renews the leases of a client's sequences from a thread of its own.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "core/base/deadline.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// Renews a lease each time a third of it has passed. A sequence that its pool no longer knows is
/// forgotten: the next call for it reports what happened.
class LeaseKeeper {
 public:
  explicit LeaseKeeper(WorkerConnections& connections);
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  void keep(const SequenceHandle& sequence);
  /// As keep(), of a lease that another client had, and that may be near its end: renewed at once.
  void take_over(const SequenceHandle& sequence);
  /// Takes the handle's new epoch if the sequence is kept; otherwise does nothing.
  void update(const SequenceHandle& sequence);
  void forget(SequenceId id);

 private:
  struct Kept {
    SequenceHandle sequence;
    Time due;
  };
  void keep(const SequenceHandle& sequence, Time due);
  void run();
  void renew(std::unique_lock<std::mutex>& lock);

  WorkerConnections& connections_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<SequenceId, Kept> kept_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace tributary
