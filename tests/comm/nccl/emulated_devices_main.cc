// The main function of tests that need several emulated devices when their cases are listed.
#include <gtest/gtest.h>

#include "tests/kernels/cuda/runtime/emulated_device.h"

int main(int argc, char** argv) {
  tributary::test::set_device_count(4);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
