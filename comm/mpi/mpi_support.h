// Internal to comm/mpi: includes mpi.h, which no other header does, converts MPI's errors to
// Status, and waits.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the C++ bindings left the standard in MPI 3.0
#include <mpi.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/awake_wait.h"
#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary {

/// State that the environment and its communicators share.
struct MpiState {
  int rank = 0;
  int size = 1;
  bool failed = false;     // a communicator of this process has failed
  bool finalized = false;  // or left initialised; no more MPI calls
  /// Memory of abandoned operations; MPI may use it until it is finalised.
  std::vector<std::shared_ptr<void>> abandoned;
};

/// Converts the return value of an MPI function: ok for MPI_SUCCESS, else kWorkerFailed.
Status mpi_status(std::string_view call, int code);

/// A waiting rank's pause between two polls. At first it yields, so that short waits end fast and
/// peers on the same core can work. Then it sleeps for longer and longer times to leave the core
/// idle.
class Waiter {
 public:
  /// `call` names the wait in messages and outlives this object.
  Waiter(std::string_view call, Deadline deadline);

  /// Call this when something arrived: more is likely to follow soon.
  void progressed() noexcept;
  /// Yields or sleeps. Returns kDeadlineExceeded after the deadline, or the result of `interrupted`
  /// if that is not ok; `interrupted` is called occasionally.
  Status pause(const std::function<Status()>& interrupted);

 private:
  std::string_view call_;
  Time begin_;
  AwakeWait patience_;
  Time yield_until_;
  std::chrono::nanoseconds sleep_{0};
  unsigned pauses_ = 0;
};

/// Polls `request` until it is complete (ok), the deadline passes, or MPI reports an error. If the
/// result is not ok, the request is still pending.
Status wait_for_request(std::string_view call, MPI_Request* request, Deadline deadline);

}  // namespace tributary
