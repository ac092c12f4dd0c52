// Renews the leases of a client's sequences from a thread of its own.
#pragma once

#include <mutex>

#include "core/interface/clock.h"
#include "core/interface/condition.h"
#include "core/interface/thread.h"
#include "deploy/service/client/lease_table.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// Sends what a LeaseTable says.
class LeaseKeeper {
 public:
  LeaseKeeper(WorkerConnections& connections, Clock& clock);
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

  // As the functions of LeaseTable.
  void keep(const SequenceHandle& sequence);
  void take_over(const SequenceHandle& sequence);
  void update(const SequenceHandle& sequence);
  void forget(const SequenceHandle& sequence);

 private:
  void run();
  void renew(std::unique_lock<std::mutex>& lock);

  WorkerConnections& connections_;
  Clock& clock_;
  std::mutex mutex_;  // guards what follows
  Condition changed_;
  LeaseTable table_;
  bool stop_ = false;
  Thread thread_;  // goes last: it uses the rest
};

}  // namespace tributary
