// The communicator between GPUs: NCCL, bootstrapped by a communicator of host memory.
#pragma once

#include <memory>

#include "core/interface/communicator.h"

struct CUstream_st;  // cudaStream_t is CUstream_st*

namespace tributary {

/// Has the ranks of `bootstrap`, each with a device of its own: NCCL refuses two ranks on one
/// device.
///
/// Buffers are memory of the rank's device, or memory that the device can read and write directly
/// (page-locked host memory). One call may mix both.
///
/// With a given stream (on_stream), that of the backend, a call returns when NCCL has accepted it;
/// the first calls wait for their peers to do so. complete() waits for the stream. With a stream of
/// its own, the work that fills the buffers must be complete when a call begins
/// (Backend::synchronize), and the received blocks are there when it returns.
///
/// NCCL is used in nonblocking mode: every wait polls for completion, for errors of NCCL, for
/// failures of `bootstrap`, and for its deadline. Any failure aborts NCCL's communicator, which
/// frees the device from a collective whose peers are missing, and poisons `bootstrap`, which tells
/// the peers. NCCL does not detect blocks of different sizes: both ends wait until their deadlines.
///
/// Making one is a collective call. `device` is CUDA's ordinal. Throws kUnavailable if NCCL cannot
/// be opened, kWorkerFailed with NCCL's message, kDeadlineExceeded if some rank does not arrive. A
/// rank that throws poisons `bootstrap`, so that the others throw the same error. `bootstrap`
/// outlives the communicator and may be used in between, on the same thread. `stream` belongs to
/// the same device, outlives the communicator and is not destroyed by it; null: it makes its own.
///
/// A lost rank ends it: survivors() throws kUnsupported, and so does making one from a `bootstrap`
/// with absent ranks.
[[nodiscard]] std::unique_ptr<Communicator> make_nccl_communicator(Communicator& bootstrap,
                                                                   int device, Deadline deadline,
                                                                   CUstream_st* stream = nullptr);

}  // namespace tributary
