// The kernels of many_rows.cu, for the launch beside it: nvcc compiles the one, the host's compiler
// the other.
#pragma once

#include <array>

namespace tributary::cuda::sm90 {

/// What the kernel is compiled for. Clusters of two blocks share each page, of bf16 rows alone: a
/// block copies selected rows, and widens codes, for itself.
struct Form {
  int blocks = 1;
  bool selected = false;
  bool codes = false;
  friend bool operator==(const Form&, const Form&) = default;
};
inline constexpr std::array kForms{Form{1}, Form{2}, Form{1, true}, Form{1, false, true},
                                   Form{1, true, true}};

/// The kernel of one of kForms, as cudaLaunchKernelExC takes it. Parameters: AttendLaunch,
/// CUtensorMap, which only the first two read.
[[nodiscard]] const void* many_rows_kernel(const Form& form);

}  // namespace tributary::cuda::sm90
