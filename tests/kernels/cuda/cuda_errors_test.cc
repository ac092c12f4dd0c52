// Any call of CUDA may fail, at once or later: the result is an Error with CUDA's message, and
// nothing is leaked.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/kernels/cuda/runtime/emulated_device.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

constexpr int kHeads = 2;
constexpr int kRank = 24;
constexpr int kLatent = 32;

/// Makes a backend, every kind of call on it, and destroys it.
void use(const CudaOptions& options) {
  const auto backend = make_cuda_backend(options);
  LatentCase latents(*backend,
                     {.kv_lora_rank = kRank,
                      .qk_rope_head_dim = kLatent - kRank,
                      .heads = kHeads,
                      .row_format = RowFormat::kF32,
                      .query_dtype = DType::kF32},
                     8, 5);
  Normal normal(7);
  const Leaf leaf = latents.add_leaf(normal.floats(70 * kLatent));
  const std::vector<LeafTask> tasks{{.item = 0,
                                     .tokens = 1,
                                     .rows = leaf.rows,
                                     .first_page = leaf.first_page,
                                     .leaf_begin = 0,
                                     .query_position = leaf.rows,
                                     .query = 0,
                                     .state = 0}};
  (void)latents.attend(tasks, normal.floats(kHeads * kLatent), 1);

  std::vector<float> values = normal.floats(kLatent * kLatent);
  const auto weight = backend->make_weight({.data = values.data(),
                                            .dtype = DType::kF32,
                                            .batch = 1,
                                            .rows = kLatent,
                                            .cols = kLatent,
                                            .batch_stride = 0,
                                            .row_stride = kLatent,
                                            .col_stride = 1});
  const auto x = backend->allocate(kLatent * sizeof(float));
  backend->upload(x->data(), std::as_bytes(std::span(values).first(kLatent)));
  const auto y = backend->allocate(kLatent * sizeof(float));
  backend->call(GemmArgs{.weight = weight.get(),
                         .tokens = 1,
                         .x = x->as<float>(),
                         .x_token_stride = kLatent,
                         .y = y->as<float>(),
                         .y_token_stride = kLatent});
  backend->mark(0);
  const std::vector<std::int64_t> index{0};
  const std::vector<Call> calls{RmsNormArgs{.tokens = 1,
                                            .width = kLatent,
                                            .x = x->as<float>(),
                                            .x_token_stride = kLatent,
                                            .weight = y->as<float>(),
                                            .eps = 1,
                                            .y = x->as<float>(),
                                            .y_token_stride = kLatent},
                                GatherArgs{index, x->data(), y->data(), sizeof(float)}};
  const auto recording = backend->record(calls);
  backend->replay(*recording);
  backend->call(ConvertArgs{.rows = 1,
                            .src = x->data(),
                            .src_row = plain_row(kLatent),
                            .src_stride_bytes = kLatent * sizeof(float),
                            .dst = y->data(),
                            .dst_row = plain_row(kLatent),
                            .dst_stride_bytes = kLatent * sizeof(float)});
  backend->mark(1);
  std::vector<std::byte> row(kLatent * sizeof(float));
  backend->store_rows(latents.cache(), 0, 0, 0, row);
  backend->load_rows(latents.cache(), 0, 0, 0, row);
  backend->download(row, y->data());
  (void)backend->microseconds_between(0, 1);
}

class CudaErrors : public testing::TestWithParam<const char*> {};

TEST_P(CudaErrors, OfAnyCallAreErrorsInCudasWordsAndLeaveNothing) {
  const std::string function = GetParam();
  const cudaError_t error = function == "cudaMalloc" || function == "cudaMallocHost"
                                ? cudaErrorMemoryAllocation
                                : cudaErrorLaunchTimeout;
  use({});  // makes the objects that live as long as the process
  EXPECT_EQ(device_counters().lazy_loads,
            0U);  // a launch that loads its kernel may wait for others
  const DeviceObjects before = device_objects();
  int calls = 0;
  // The fast order differs in the memory that it takes.
  for (const bool fast : {false, function == "cudaMalloc"}) {
    for (int n = 1;; ++n) {
      SCOPED_TRACE(testing::Message() << function << ", call " << n << (fast ? ", fast" : ""));
      fail_call(function, n, error);
      std::optional<Error> thrown;
      try {
        use({.fast_merge_order = fast});
      } catch (const Error& caught) {
        thrown = caught;
      }
      EXPECT_EQ(device_objects(), before);
      EXPECT_EQ(cudaPeekAtLastError(), cudaSuccess);  // nor does the next call see the error
      if (failure_is_due(function)) {
        EXPECT_FALSE(thrown.has_value()) << thrown->what();
        fail_call(function, 0, error);
        break;
      }
      ++calls;
      if (!thrown) {
        ADD_FAILURE() << "nobody noticed";
        continue;
      }
      const std::string_view words = function == "cublasLtMatmul" ? "cuBLASLt says"
                                     : error == cudaErrorMemoryAllocation
                                         ? "memory"
                                         : cudaGetErrorString(error);
      EXPECT_NE(std::string_view(thrown->what()).find(words), std::string::npos) << thrown->what();
      EXPECT_EQ(thrown->code() == ErrorCode::kPoolFull, error == cudaErrorMemoryAllocation);
    }
  }
  EXPECT_GT(calls, 0) << "the backend never calls it";
  use({});
}

INSTANTIATE_TEST_SUITE_P(
    Functions, CudaErrors,
    testing::Values("cudaMalloc", "cudaMallocHost", "cudaMemcpyAsync", "cudaLaunchKernel",
                    "cublasLtMatmul", "cudaStreamCreateWithFlags", "cudaEventCreate",
                    "cudaEventCreateWithFlags", "cudaEventRecord", "cudaEventElapsedTime",
                    "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate",
                    "cudaGraphLaunch", "cudaStreamQuery", "cudaGetDeviceCount",
                    "cudaGetDeviceProperties", "cudaDeviceGetAttribute", "cudaFuncGetAttributes"),
    [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

}  // namespace
}  // namespace tributary::test
