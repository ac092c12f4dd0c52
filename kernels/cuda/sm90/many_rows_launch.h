// The kernels of many_rows.cu, for the launch beside it: nvcc compiles the one, the host's compiler
// the other.
#pragma once

namespace tributary::cuda::sm90 {

/// The kernel in which clusters of `blocks` (1 or 2) blocks share each page, as
/// cudaLaunchKernelExC takes it. Parameters: AttendLaunch, CUtensorMap.
[[nodiscard]] const void* many_rows_kernel(int blocks);

}  // namespace tributary::cuda::sm90
