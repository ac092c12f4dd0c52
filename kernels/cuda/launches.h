// Internal to kernels/cuda: a call in its device form, as data, with its plan data in device
// memory. Two launches are equal if a captured one does the work of the other, apart from plan
// data.
#pragma once

#include <variant>

#include "core/interface/calls.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/cuda_projection.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {

struct GemmLaunch {
  const CudaWeight* weight = nullptr;
  GemmArgs args;
  const void* memory = nullptr;  // Projection::memory
  friend bool operator==(const GemmLaunch&, const GemmLaunch&) = default;
};

/// A call without plan data is its own launch.
using Launch =
    std::variant<AppendLaunch, AttendLaunch, MergeLaunch, GatherLaunch, GemmLaunch, RmsNormArgs,
                 RopeLaunch, LatentRowsLaunch, ConvertArgs, DenseAttendArgs>;

/// Enqueues the launch. `projection` may be null if the launch is not a product.
void make_launch(const Launch& launch, Projection* projection, cudaStream_t stream);

}  // namespace tributary::cuda
