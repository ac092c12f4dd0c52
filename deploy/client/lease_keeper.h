// Renews the leases of a client's sequences from a thread of its own.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>

#include "deploy/client/tier_client.h"
#include "deploy/client/worker_connections.h"

namespace tributary {

/// Renews every third of a lease. A sequence that its pool does not know any more is forgotten: its
/// next call says what happened to it.
class LeaseKeeper {
 public:
  explicit LeaseKeeper(WorkerConnections& connections);
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  /// Of a handle that was kept before: its new epoch.
  void keep(const SequenceHandle& sequence);
  void forget(SequenceId id);

 private:
  struct Kept {
    SequenceHandle sequence;
    Deadline::Clock::time_point due;
  };
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
