#include "comm/ucx/ucx_support.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "tests/core/base/expect_error.h"

namespace tributary::ucx {
namespace {

/// The code that `call` ends with on another thread.
ErrorCode code_elsewhere(const std::function<void()>& call) {
  ErrorCode code = ErrorCode::kOk;
  std::thread([&] { code = code_of(call); }).join();
  return code;
}

TEST(UcxWorker, BelongsToTheThreadThatMadeIt) {
  Worker worker(/*shared_memory=*/false, /*devices=*/"");
  EXPECT_NE(worker.get(), nullptr);
  EXPECT_FALSE(worker.address().empty());
  EXPECT_EQ(code_elsewhere([&] { static_cast<void>(worker.get()); }), ErrorCode::kInternal);
  EXPECT_EQ(code_elsewhere([&] { static_cast<void>(worker.arm()); }), ErrorCode::kInternal);
  EXPECT_EQ(code_elsewhere([&] { static_cast<void>(worker.address()); }), ErrorCode::kInternal);
}

}  // namespace
}  // namespace tributary::ucx
