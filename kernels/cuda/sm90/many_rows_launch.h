// The kernels of many_rows.cu, for the launch beside it: nvcc compiles the one, the host's compiler
// the other.
#pragma once

namespace tributary::cuda::sm90 {

/// The kernel in which clusters of `blocks` (1 or 2) blocks share each page, as
/// cudaLaunchKernelExC takes it. Parameters: AttendLaunch, CUtensorMap.
[[nodiscard]] const void* many_rows_kernel(int blocks);
/// The same over selected rows, in which every block copies its own. It does not read the map.
[[nodiscard]] const void* many_selected_rows_kernel();

}  // namespace tributary::cuda::sm90
