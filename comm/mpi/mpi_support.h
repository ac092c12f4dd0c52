// Internal to comm/mpi: MPI's header, its errors as Status, and how a rank waits. No other header
// includes mpi.h.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the C++ bindings left the standard in MPI 3.0
#include <mpi.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary {

/// What the environment and its communicators share.
struct MpiState {
  int rank = 0;
  int size = 1;
  bool failed = false;     // some communicator of this process has failed
  bool finalized = false;  // or left as it is: no MPI call any more
  /// Memory of operations that were given up; MPI may use it until it is finalised.
  std::vector<std::shared_ptr<void>> abandoned;
};

/// `code` is what an MPI function returned: ok for MPI_SUCCESS, else kWorkerFailed.
Status mpi_status(std::string_view call, int code);

/// What a waiting rank does between two polls: it yields for a while, so that short waits end fast
/// and peers on the same core get on, and then sleeps, ever longer, so that it burns no core.
class Waiter {
 public:
  /// `call` names the wait in messages and must live as long.
  Waiter(std::string_view call, Deadline deadline);

  /// Something arrived: more is likely to follow soon.
  void progressed() noexcept;
  /// Yields or sleeps. kDeadlineExceeded when the deadline has passed, or what `interrupted`
  /// returns when that is not ok (it is asked now and then).
  Status pause(const std::function<Status()>& interrupted);

 private:
  std::string_view call_;
  Deadline deadline_;
  Deadline::Clock::time_point begin_;
  Deadline::Clock::time_point yield_until_;
  std::chrono::nanoseconds sleep_{0};
  unsigned pauses_ = 0;
};

/// Polls `request` until it is complete (ok), or the deadline passes, or MPI reports an error.
/// Whatever is not ok leaves the request pending.
Status wait_for_request(std::string_view call, MPI_Request* request, Deadline deadline);

}  // namespace tributary
