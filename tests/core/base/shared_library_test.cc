#include "core/base/shared_library.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "core/base/error.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

TEST(SharedLibrary, OpensTheFirstThatThereIs) {
  const std::array<std::string, 2> names{"libnothing-of-the-kind.so.0", "libm.so.6"};
  const SharedLibrary library(names);
  double (*square_root)(double) = nullptr;
  library.find("sqrt", square_root);
  EXPECT_EQ(square_root(9), 3);
  EXPECT_EQ(code_of([&] { library.find("no_such_function", square_root); }),
            ErrorCode::kUnavailable);
}

TEST(SharedLibrary, SaysWhichOneIsMissing) {
  const std::array<std::string, 1> names{"libnothing-of-the-kind.so.0"};
  const Status status = status_of([&] { const SharedLibrary library(names); });
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_NE(status.message().find(names[0]), std::string::npos) << status.message();
}

}  // namespace
}  // namespace tributary
