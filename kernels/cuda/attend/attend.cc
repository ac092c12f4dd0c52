#include "kernels/cuda/attend/attend.h"

#include "core/base/error.h"
#include "kernels/cuda/attend/attend_launch.h"
#include "kernels/cuda/attend/few_rows_shape.h"
#include "kernels/cuda/base/support.h"

namespace tributary::cuda {
namespace {

// Stages of the few-rows kernel on the current device.
int stages_here(int unit_rows) {
  int device = 0;
  int bytes = 0;
  check(cudaGetDevice(&device), "attend: the current device");
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
        "attend: the shared memory of a block");
  const int stages = few_rows_stages(unit_rows / 16, static_cast<std::size_t>(bytes));
  if (stages == 0) {
    fail(ErrorCode::kInternal,
         "attend: units of {} rows need {} bytes of shared memory, there are {}", unit_rows,
         few_rows_bytes(unit_rows / 16, kFewestStages), bytes);
  }
  return stages;
}

}  // namespace

void enqueue(const AttendLaunch& launch, CUstream_st* stream) {
  switch (launch.kernel) {
    case AttendKernel::kGeneric:
      return check(launch_generic(launch, stream), "attend, generic");
    case AttendKernel::kFewRows:
      return check(launch_few_rows(launch, stages_here(launch.unit_rows), stream),
                   "attend, few rows");
    case AttendKernel::kManyRows:
      return attend_many_rows(launch, stream);
  }
}

void load_attend(const DeviceLimits& device) {
  check(load_attend_kernels(), "loading the kernels of attention");
  if (device.compute_capability == 90) load_many_rows();
}

void enqueue(const MergeLaunch& launch, CUstream_st* stream) {
  if (launch.count == 0) return;
  check(launch_merge(launch, stream), "merge");
}

}  // namespace tributary::cuda
