// The emulated NCCL, as tests see it: libnccl.so.2 for ranks that are threads of one process, each
// on an emulated device of its own (tests/kernels/cuda/runtime), with communicators that do not
// block.
//
// It is as lazy as NCCL may be: what was given to it lies on the stream only when the communicator
// was asked and said success; bytes move, all at once, when the streams of all that take part have
// come to them, and a stream comes on only when its own rank asks. What does not match, or whose
// peer never comes, stays on its stream until the communicator is aborted. What is to be connected
// for the first time takes several questions and all the peers.
// Not emulated: communicators that block, several streams of one communicator, reductions.
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tributary::test {

/// Since the process began.
struct NcclCounters {
  std::uint64_t polls = 0;
  std::uint64_t groups = 0;     // that were put on a stream, by one rank each
  std::uint64_t transfers = 0;  // from one rank's memory to another's; a collective is one
  std::uint64_t bytes = 0;      // received, by whomever
  std::uint64_t aborted = 0;    // groups that an abort ended on their stream
};
[[nodiscard]] NcclCounters nccl_counters();

/// Communicators that were neither destroyed nor aborted.
[[nodiscard]] std::size_t live_communicators();

/// The n-th call from now on (1: the next) of NCCL's function, by the communicator of this rank,
/// fails with `result` and does nothing. 0 takes it back.
void fail_nccl_call(std::string_view function, int rank, int n, ncclResult_t result);
/// Whether that call was not made yet.
[[nodiscard]] bool nccl_failure_is_due(std::string_view function, int rank);

/// All communicators of this rank meet an asynchronous error, as of a network.
void fail_communicators(int rank, ncclResult_t error);

/// Calls that NCCL forbids and punishes by crashes, hangs or worse, in one line; empty: none.
[[nodiscard]] std::string nccl_misuse();
void clear_nccl_misuse();

}  // namespace tributary::test
