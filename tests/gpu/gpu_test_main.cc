// The main function of tests that need a GPU: without one they are skipped, with the reason in one
// line.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_devices.h"

namespace {

/// The exit code that ctest counts as skipped (SKIP_RETURN_CODE).
constexpr int kSkipped = 77;

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const tributary::CudaStatus status = tributary::cuda_status();
  if (!status.problem.empty() && !testing::GTEST_FLAG(list_tests)) {
    fmt::print("SKIPPED, nothing was tested: no usable GPU: {}\n", status.problem);
    return kSkipped;
  }
  return RUN_ALL_TESTS();
}
