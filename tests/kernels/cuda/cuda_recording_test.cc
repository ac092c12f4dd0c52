// Recordings of the CUDA backend, which are CUDA graphs: they keep the memory that they use. On the
// emulated device, which detects freed memory.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/kernels/cuda/runtime/emulated_device.h"
#include "tests/kernels/device_vectors.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

constexpr auto kReplayTimeout = std::chrono::seconds(30);

class CudaRecordings : public testing::Test {
 protected:
  void TearDown() override {
    EXPECT_EQ(device_fault(), "");
    clear_device_fault();
  }
  std::unique_ptr<Weight> weight(std::int64_t size) {
    const std::vector<float> values = Normal(3).floats(static_cast<std::size_t>(size * size));
    return backend_->make_weight(
        {.data = values.data(), .rows = size, .cols = size, .row_stride = size});
  }
  /// y = weight x, for one token of 16.
  [[nodiscard]] static Call multiply(const Weight& weight, const Buffer& x, const Buffer& y) {
    return GemmArgs{.weight = &weight,
                    .tokens = 1,
                    .x = x.as<float>(),
                    .x_token_stride = 16,
                    .y = y.as<float>(),
                    .y_token_stride = 16};
  }
  [[nodiscard]] std::unique_ptr<Recording> record(const std::vector<Call>& calls) {
    return backend_->record(calls);
  }

  std::unique_ptr<Backend> backend_ = make_cuda_backend({});
};

TEST_F(CudaRecordings, ALargerWeightThatIsMadeLaterLeavesARecordedProductRightOrRefused) {
  const auto small = weight(16);
  const auto x = on_device(*backend_, Normal(1).floats(16));
  const auto y = backend_->allocate(16 * sizeof(float));
  const auto recording = record({multiply(*small, *x, *y)});
  backend_->call(multiply(*small, *x, *y));
  const auto expected = fetch<float>(*backend_, *y);
  const auto large = weight(256);  // the memory that products pass through grows
  backend_->upload(y->data(), std::vector<std::byte>(16 * sizeof(float)));
  const Status status = status_of([&] {
    backend_->replay(*recording);
    backend_->synchronize(Deadline::after(kReplayTimeout));
  });
  if (status.ok()) {
    EXPECT_EQ(fetch<float>(*backend_, *y), expected);
  } else {
    EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition) << status.message();
  }
}

TEST_F(CudaRecordings, ALargerPlanOfTheFastOrderLeavesARecordedOneRightOrRefused) {
  backend_ = make_cuda_backend({.fast_merge_order = true});
  const LatentShape shape{.kv_lora_rank = 24,
                          .qk_rope_head_dim = 8,
                          .heads = 2,
                          .row_format = RowFormat::kF32,
                          .query_dtype = DType::kF32};
  LatentCase latents(*backend_, shape, 40, 5);
  Normal normal(1);
  const Leaf leaf = latents.add_leaf(normal.floats(std::size_t{1000} * 32));
  const auto queries = on_device(*backend_, normal.floats(std::size_t{8} * 2 * 32));
  const auto states = backend_->allocate(8 * shape.state().record_bytes());
  const std::int32_t layer = 0;
  std::vector<LeafTask> tasks;
  const auto attend = [&](int rows, int tokens) -> Call {
    tasks.clear();
    for (int t = 0; t < tokens; ++t) {
      tasks.push_back({.tokens = 1,
                       .rows = rows,
                       .first_page = leaf.first_page,
                       .query_position = rows,
                       .query = t,
                       .state = t});
    }
    return AttendArgs{.cache = &latents.cache(),
                      .tasks = tasks,
                      .block_table = latents.block_table(),
                      .item_layer = std::span(&layer, 1),
                      .queries = queries->data(),
                      .query_stride_bytes = std::size_t{2} * 32 * sizeof(float),
                      .query_dtype = DType::kF32,
                      .heads = 2,
                      .softmax_scale = 0.2F,
                      .states = states->as<float>()};
  };
  const auto recording = record({attend(300, 1)});
  backend_->call(attend(300, 1));
  std::vector<float> expected = fetch<float>(*backend_, *states);
  expected.resize(shape.state().record_floats());
  backend_->call(attend(1000, 8));  // scratch grows
  const Status status = status_of([&] {
    backend_->replay(*recording);
    backend_->synchronize(Deadline::after(kReplayTimeout));
  });
  if (status.ok()) {
    std::vector<float> got = fetch<float>(*backend_, *states);
    got.resize(expected.size());
    EXPECT_EQ(got, expected);
  } else {
    EXPECT_EQ(status.code(), ErrorCode::kFailedPrecondition) << status.message();
  }
}

TEST_F(CudaRecordings, RowsAreStoredWhileCallsAreRecorded) {
  const CacheLayout layout{.layers = 1, .pages = 1, .kv_lora_rank = 24, .qk_rope_head_dim = 8};
  const auto cache = backend_->make_cache(layout);
  const auto w = weight(16);
  const auto x = on_device(*backend_, Normal(1).floats(16));
  const auto y = backend_->allocate(16 * sizeof(float));
  backend_->call(multiply(*w, *x, *y));
  const auto expected = fetch<float>(*backend_, *y);
  backend_->upload(y->data(), std::vector<std::byte>(16 * sizeof(float)));
  constexpr int kStores = 50;
  std::atomic<int> stores = 0;
  std::thread receiver([&] {  // as the receiver of rows does, at any time
    for (int i = 0; i < kStores; ++i, ++stores) {
      std::vector<std::byte> row(layout.row_bytes(), static_cast<std::byte>(i));
      backend_->store_rows(*cache, 0, 0, 5, row);
      std::vector<std::byte> got(layout.row_bytes());
      backend_->load_rows(*cache, 0, 0, 5, got);
      EXPECT_EQ(got, row);
    }
  });
  std::unique_ptr<Recording> recording;
  do {
    recording = record({multiply(*w, *x, *y)});
  } while (stores < kStores);
  receiver.join();
  backend_->replay(*recording);
  EXPECT_EQ(fetch<float>(*backend_, *y), expected);
}

}  // namespace
}  // namespace tributary::test
