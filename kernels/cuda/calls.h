// Internal to kernels/cuda: what the backend asks of the device, as data: a call is a launch, or
// the launches of a product. Calls are equal where a captured launch of the one does what the other
// asks, their plan data apart.
#pragma once

#include <variant>

#include "core/interface/backend.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/projection.h"

namespace tributary::cuda {

struct GemmCall {
  const CudaWeight* weight = nullptr;
  GemmArgs args;
  const void* memory = nullptr;  // Projection::memory
  friend bool operator==(const GemmCall&, const GemmCall&) = default;
};

using Call = std::variant<AppendLaunch, AttendLaunch, MergeLaunch, GatherLaunch, GemmCall,
                          RmsNormArgs, RopeLaunch, LatentRowsLaunch, ConvertArgs, DenseAttendArgs>;

/// Enqueues it.
void make_call(const Call& call, Projection& projection, cudaStream_t stream);

}  // namespace tributary::cuda
