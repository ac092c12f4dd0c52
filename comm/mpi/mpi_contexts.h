// Internal to comm/mpi: the MPI communicators of one communicator and of all its survivors.
#pragma once

#include <cstddef>
#include <vector>

#include "comm/mpi/mpi_support.h"
#include "core/base/deadline.h"

namespace tributary {

/// Duplicates of MPI_COMM_WORLD, all made while every rank lives: making one takes all ranks, and
/// MPI_Comm_create_group, which takes the members alone, blocks if one of them dies meanwhile. A
/// message reaches only receives on the same duplicate, so one that was sent before a failure is
/// never taken for a part of a later collective.
///
/// They are never freed. A peer may have failed in its last call and told this rank: Open MPI 4.1
/// loses unrelated messages when one arrives for a freed communicator.
class MpiContexts {
 public:
  /// Makes `count` of them, in a collective call of all ranks. Throws kDeadlineExceeded,
  /// kWorkerFailed.
  MpiContexts(std::size_t count, Deadline deadline);

  /// The next one: the same on all ranks that have taken equally many. Does not communicate. Throws
  /// kUnavailable when none is left.
  [[nodiscard]] MPI_Comm take();

 private:
  std::vector<MPI_Comm> made_;
  std::size_t taken_ = 0;
};

}  // namespace tributary
