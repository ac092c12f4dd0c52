// Nonblocking duplications, waited for with the deadline.
#include "comm/mpi/mpi_contexts.h"

namespace tributary {

MpiContexts::MpiContexts(std::size_t count, Deadline deadline) {
  for (made_.reserve(count); made_.size() < count;) {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    mpi_status("MPI_Comm_idup", MPI_Comm_idup(MPI_COMM_WORLD, &comm, &request)).throw_if_error();
    wait_for_request("MPI_Comm_idup", &request, deadline).throw_if_error();
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    made_.push_back(comm);
  }
}

MPI_Comm MpiContexts::take() {
  if (taken_ == made_.size()) {
    fail(ErrorCode::kUnavailable,
         "mpi: all {} communicators that were made at the start are used; after {} losses a pool "
         "has to be started anew",
         made_.size(), made_.size() - 1);
  }
  return made_[taken_++];
}

}  // namespace tributary
