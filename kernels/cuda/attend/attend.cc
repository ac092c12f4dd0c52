#include "kernels/cuda/attend/attend.h"

#include "kernels/cuda/attend/attend_launch.h"
#include "kernels/cuda/base/support.h"

namespace tributary::cuda {
void enqueue(const AttendLaunch& launch, CUstream_st* stream) {
  switch (launch.kernel) {
    case AttendKernel::kGeneric:
      return check(launch_generic(launch, stream), "attend, generic");
    case AttendKernel::kFewRows:
      return check(launch_few_rows(launch, stream), "attend, few rows");
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
