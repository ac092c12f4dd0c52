// The CUDA backend joins the conformance suite; then tests of its own.
#include "kernels/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/expect_error.h"
#include "tests/kernels/backend_conformance.h"

namespace tributary::test {
namespace {

// If queries and rows are bf16, attention rounds the weights of values to bf16 for the tensor
// cores.
INSTANTIATE_TEST_SUITE_P(Cuda, BackendConformance,
                         testing::Values(BackendUnderTest{
                             .name = "Cuda",
                             .make = [] { return make_cuda_backend({}); },
                             .arithmetic = Arithmetic::kBf16Weights}),
                         name_of);

TEST(CudaBackend, NameSaysWhatDecidesTheBits) {
  const std::string name(make_cuda_backend({})->name());
  EXPECT_TRUE(name.starts_with("cuda/")) << name;
  EXPECT_NE(name.find("/sm_"), std::string::npos) << name;
  EXPECT_NE(name.find("/cublaslt-"), std::string::npos) << name;
}

TEST(CudaBackend, ItsMemoryIsNotTheHosts) {
  EXPECT_FALSE(make_cuda_backend({})->host_memory());
}

TEST(CudaBackend, ADeviceThatThereIsNotIsRefused) {
  EXPECT_EQ(code_of([] { (void)make_cuda_backend({.device = 1000}); }),
            ErrorCode::kInvalidArgument);
}

TEST(CudaBackend, PlanDataSurvivesManyCallsAhead) {
  // Far more plan data than the staging ring holds, without waiting in between: every gather must
  // find its own index.
  const auto backend = make_cuda_backend({});
  constexpr std::size_t kRecords = 50'000;
  constexpr std::size_t kCalls = 100;
  std::vector<std::int64_t> values(kRecords);
  for (std::size_t i = 0; i < kRecords; ++i) values[i] = static_cast<std::int64_t>(i);
  const auto source = backend->allocate(kRecords * sizeof(std::int64_t));
  backend->upload(source->data(), std::as_bytes(std::span(values)));
  std::vector<std::unique_ptr<Buffer>> results;
  std::vector<std::int64_t> index(kRecords);
  const auto index_of = [](std::size_t call, std::size_t i) {
    return static_cast<std::int64_t>((i * (call + 1) + call) % kRecords);
  };
  for (std::size_t call = 0; call < kCalls; ++call) {
    for (std::size_t i = 0; i < kRecords; ++i) index[i] = index_of(call, i);
    results.push_back(backend->allocate(kRecords * sizeof(std::int64_t)));
    backend->call(GatherArgs{index, source->data(), results.back()->data(), sizeof(std::int64_t)});
  }
  backend->synchronize(Deadline::after(std::chrono::seconds(60)));
  for (std::size_t call = 0; call < kCalls; ++call) {
    std::vector<std::int64_t> got(kRecords);
    backend->download(std::as_writable_bytes(std::span(got)), results[call]->data());
    for (std::size_t i = 0; i < kRecords; ++i) ASSERT_EQ(got[i], index_of(call, i)) << call;
  }
}

}  // namespace
}  // namespace tributary::test
