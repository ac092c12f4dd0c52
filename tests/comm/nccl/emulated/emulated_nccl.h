// The emulated NCCL, as tests see it: libnccl.so.2 for ranks that are threads of one process, each
// on an emulated device of its own (tests/kernels/cuda/runtime), with communicators that do not
// block.
//
// It is as lazy as NCCL may be. A call is on the stream only once the communicator, when polled,
// has reported success. Bytes move, all at once, when the streams of all participants have reached
// the call, and a stream advances only when its own rank polls. A call that does not match its
// peers', or whose peer never arrives, stays on its stream until the communicator is aborted. A
// first connection takes several polls, and needs all peers. Not emulated: communicators that
// block, several streams of one communicator, reductions.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tributary::test {

/// Totals since the process began.
struct NcclCounters {
  std::uint64_t polls = 0;
  std::uint64_t groups = 0;     // that were put on a stream, by one rank each
  std::uint64_t transfers = 0;  // from one rank's memory to another's; a collective is one
  std::uint64_t bytes = 0;      // received, by all ranks
  std::uint64_t aborted = 0;    // groups that an abort ended on their stream
};
[[nodiscard]] NcclCounters nccl_counters();

/// Communicators that were neither destroyed nor aborted.
[[nodiscard]] std::size_t live_communicators();

/// The n-th call from now on (1: the next) of NCCL's function, by the communicator of this rank,
/// fails with `result` and does nothing. 0 cancels that.
void fail_nccl_call(std::string_view function, int rank, int n, ncclResult_t result);
/// Whether that call has not been made yet.
[[nodiscard]] bool nccl_failure_is_due(std::string_view function, int rank);

/// Raises an asynchronous error, such as a network's, in all communicators of this rank.
void fail_communicators(int rank, ncclResult_t error);

/// Calls that NCCL forbids, and that would crash, hang or worse, in one line; empty: none.
[[nodiscard]] std::string nccl_misuse();
void clear_nccl_misuse();

}  // namespace tributary::test
