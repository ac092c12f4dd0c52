// The communicator between processes that mpirun started: nonblocking MPI messages, polled until a
// deadline.
#pragma once

#include <memory>

#include "comm/mpi/mpi_environment.h"
#include "core/interface/communicator.h"

namespace tributary {

/// All ranks of the environment, in an MPI communicator of its own. MPI keeps that one until it is
/// finalised, so a program should make few. Every rank makes its communicators in the same order
/// and destroys them before the environment. Throws kDeadlineExceeded when some rank does not
/// arrive, kWorkerFailed when MPI reports an error.
///
/// Blocks are sent as nonblocking messages between pairs of ranks, in pieces through staging memory
/// of the communicator (at most 2 x 128 KiB per block). So the caller's buffers are free when a
/// call returns, even though MPI continues the messages of a call that missed its deadline. A
/// waiting rank polls, soon yields, and sleeps between polls after 0.5 ms without progress.
///
/// Ranks whose calls do not match (another collective, or another position in the sequence of
/// calls) fail at their deadlines. Blocks of different sizes are kInvalidArgument at the receiver.
/// A rank that fails tells its peers, which fail with its cause at their next poll; peers that
/// cannot be told fail at their deadlines. A call may complete on some ranks and fail on others: it
/// ends when this rank has sent and received all its blocks.
///
/// survivors() waits for nothing: its MPI communicator was made at the start, as one of eight. All
/// communicators that came from one share these, and the ninth call of survivors() throws
/// kUnavailable.
///
/// Ranks outlive a killed one where mpirun has --enable-recovery and the transport lets them; one
/// that it takes along is one more lost rank to the others. With Open MPI 4.1.4 on one host
/// (tests/comm/mpi/rank_killed_program.cc, 4 ranks, two killed one after the other):
///
///   shared memory: the default is enough.
///   TCP: needs `--mca btl_tcp_progress_thread 1`; 30 of 30 runs. Without it 3 of 22
///     runs hung (in the two looked at, MPI_Testsome of a survivor never returned from libevent, so
///     no deadline was looked at), and connections may be polled every 10 ms only. An exchange of 8
///     bytes takes 33 us, not 27.
///   UCX: needs UCX_TLS without cma (`-x UCX_TLS=^cma`); 25 of 25 runs. That transport aborts a
///     process when it reads memory of a dead one; 2 of 10 runs.
[[nodiscard]] std::unique_ptr<Communicator> make_mpi_communicator(const MpiEnvironment& environment,
                                                                  Deadline deadline);

}  // namespace tributary
