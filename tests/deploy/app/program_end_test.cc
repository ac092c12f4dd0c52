#include "deploy/app/program_end.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <new>
#include <thread>

namespace tributary {
namespace {

TEST(ProgramEndDeathTest, AThreadsExceptionIsALineAndAStatus) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::set_terminate(end_badly);
        std::thread([] { throw std::bad_alloc(); }).join();
      },
      testing::ExitedWithCode(1), "^tributary: ended by std::bad_alloc\n$");
}

TEST(ProgramEndDeathTest, AReportThatWasNotWrittenIsAFailure) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        if (std::freopen("/dev/full", "w", stdout) == nullptr) std::_Exit(7);
        std::puts("report");
        std::_Exit(flushed(0));
      },
      testing::ExitedWithCode(1), "stdout cannot be written: No space left on device");
  EXPECT_EXIT(
      {
        std::puts("report");
        std::_Exit(flushed(2));
      },
      testing::ExitedWithCode(2), "");
}

}  // namespace
}  // namespace tributary
