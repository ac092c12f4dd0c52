// The CUDA backend without cuBLASLt: attention, merges and all other kernels of ours still work.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_devices.h"
#include "tests/core/base/expect_error.h"
#include "tests/kernels/cuda/runtime/emulated_device.h"
#include "tests/kernels/latent_case.h"

// This program's: the library is not on this machine.
extern "C" void* dlopen(const char* name, int flags) {
  static auto* const real =
      reinterpret_cast<void* (*)(const char*, int)>(dlsym(RTLD_NEXT, "dlopen"));
  const bool hidden = name != nullptr && std::strstr(name, "cublasLt") != nullptr;
  return real(hidden ? "libcublasLt.so.is-missing" : name, flags);
}

namespace tributary::test {
namespace {

TEST(CudaWithoutProducts, AttentionGoesOnAndAWeightSaysWhatIsMissing) {
  const CudaStatus status = cuda_status();
  EXPECT_EQ(status.problem, "");
  EXPECT_NE(status.products_problem.find("libcublasLt.so.is-missing"), std::string::npos)
      << status.products_problem;
  const auto backend = make_cuda_backend({});
  EXPECT_EQ(backend->name(), "cuda/Emulated/sm_80/cublaslt-none");
  LatentCase latents(*backend,
                     {.kv_lora_rank = 24,
                      .qk_rope_head_dim = 8,
                      .heads = 2,
                      .row_format = RowFormat::kF32,
                      .query_dtype = DType::kF32},
                     2, 3);
  Normal normal(1);
  const Leaf leaf = latents.add_leaf(normal.floats(std::size_t{70} * 32));
  const std::vector<float> queries = normal.floats(std::size_t{2} * 32);
  const LeafTask task{.tokens = 1, .rows = 70, .first_page = leaf.first_page, .query_position = 70};
  EXPECT_EQ(latents.attend({task}, queries, 1), latents.attend({task}, queries, 1));
  const float one = 1;
  const auto make = [&] {
    (void)backend->make_weight({.data = &one, .rows = 1, .cols = 1, .row_stride = 1});
  };
  EXPECT_EQ(code_of(make), ErrorCode::kUnsupported);
  EXPECT_NE(message_of(make).find("libcublasLt.so.is-missing"), std::string::npos);
  EXPECT_EQ(device_fault(), "");
}

}  // namespace
}  // namespace tributary::test
