// The backend for NVIDIA GPUs: memory of one device, one stream for its work and one for rows from
// outside, kernels of our own and cuBLASLt's products.
#pragma once

#include <memory>

#include "core/interface/backend.h"
#include "kernels/cuda/attend/attend_choice.h"

struct CUstream_st;  // cudaStream_t is CUstream_st*

namespace tributary {

struct CudaOptions {
  /// CUDA's ordinal among the devices that this process may use.
  int device = 0;
  /// Attention over pieces of any number of pages, balanced over the device, instead of over
  /// leaves: the last bits of states then depend on the batch. The name says `fast`.
  bool fast_merge_order = false;
  /// Whether record() makes CUDA graphs. If not, it records nothing, and all calls are launched one
  /// by one.
  bool graphs = true;
  /// The kernel of attention, if not the one for the shape; the name says it. Caches and calls of a
  /// shape that it does not support are refused (kUnsupported).
  AttendChoice attend_kernel = AttendChoice::kAuto;
};

/// Name: `cuda/NVIDIA H200/sm_90/cublaslt-130100`, which is everything that decides the bits. Calls
/// are enqueued. Only these wait for the device: synchronize, download, store_rows and load_rows
/// (each at most 60 s), a ring of plan data that is several layers ahead, and, while they grow, the
/// memory of the ring and of products (make_weight). attend, merge, append and the operations of a
/// layer neither allocate nor wait after the largest plan was seen.
///
/// Without cuBLASLt the name ends in `cublaslt-none` and make_weight throws kUnsupported;
/// everything else works. After a missed deadline the backend's memory is not freed until a wait
/// for the same work succeeds, because freeing would wait for the device without a deadline.
///
/// Throws kUnsupported with the missing parts, in one line, if no device can be used;
/// kInvalidArgument for a device that does not exist.
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

/// The stream of a backend from make_cuda_backend, for ordering other work with it; null for
/// others.
[[nodiscard]] CUstream_st* cuda_stream(const Backend& backend);

}  // namespace tributary
