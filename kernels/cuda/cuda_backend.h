// The backend for NVIDIA GPUs: memory of one device, one stream for its work and one for rows from
// outside, kernels of our own and cuBLASLt's products.
#pragma once

#include <memory>

#include "core/interface/backend.h"

struct CUstream_st;  // cudaStream_t is CUstream_st*

namespace tributary {

struct CudaOptions {
  /// As CUDA counts the devices that this process may use.
  int device = 0;
  /// Attention over pieces of any number of pages, balanced over the device, instead of over
  /// leaves: states then depend on the batch, in their last bits. The name says `fast`.
  bool fast_merge_order = false;
  /// Whether record() makes CUDA graphs; else it makes nothing, and all calls are launched one by
  /// one.
  bool graphs = true;
};

/// Name: `cuda/NVIDIA H200/sm_90/cublaslt-130100`: what decides the bits. Calls are enqueued;
/// nothing waits for the device but synchronize, download, store_rows and load_rows (each at most
/// 60 s), a ring of plan data that is several layers ahead, and, while they grow, its memory and
/// that of products (make_weight). attend, merge, append and the operations of a layer neither
/// allocate nor wait once the largest plan was seen.
///
/// Throws kUnsupported, in one line that says what is missing, where no device can be used;
/// kInvalidArgument for a device that there is not.
[[nodiscard]] std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);

/// The stream of a backend that make_cuda_backend made, to order other work with; null for others.
[[nodiscard]] CUstream_st* cuda_stream(const Backend& backend);

}  // namespace tributary
