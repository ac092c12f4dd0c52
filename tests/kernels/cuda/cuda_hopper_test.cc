// The CUDA backend on an sm_90, where attention of many heads has its own kernel: its choice, its
// launch in clusters and the map of the cache. On the emulated device.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/kernels/codes_case.h"
#include "tests/kernels/cuda/runtime/emulated_device.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

constexpr std::int32_t kRows = 140;

class CudaHopperTokens : public testing::TestWithParam<int> {
 protected:
  void TearDown() override { EXPECT_EQ(device_fault(), ""); }

  const EmulatedHopper hopper_;
  const std::unique_ptr<Backend> backend_ = make_cuda_backend({});
};

// 33 heads: the fewest that take the kernel, in one block; 66 rows are two blocks of a cluster.
TEST_P(CudaHopperTokens, AttentionOfManyHeadsIsNearFloat64) {
  EXPECT_NE(backend_->name().find("/sm_90/"), std::string_view::npos) << backend_->name();
  const LatentShape shape{.kv_lora_rank = 512, .qk_rope_head_dim = 64, .heads = 33, .layers = 2};
  const int tokens = GetParam();
  LatentCase latents(*backend_, shape, 4, 3);
  Normal normal(4);
  const Leaf leaf = latents.add_leaf(normal.floats(std::size_t{kRows} * 576), 1);
  const std::vector<float> queries =
      normal.floats(static_cast<std::size_t>(tokens) * 33 * 576, 0.3);
  const std::vector<float> states = latents.attend({{.tokens = tokens,
                                                     .rows = kRows,
                                                     .first_page = leaf.first_page,
                                                     .query_position = kRows - tokens}},
                                                   queries, static_cast<std::size_t>(tokens), 1);
  const std::vector<double> exact = rounded(queries, DType::kBF16);
  for (int token = 0; token < tokens; ++token) {
    const auto record = static_cast<std::size_t>(token);
    const int visible = kRows - tokens + token + 1;
    for (int head = 0; head < shape.heads; ++head) {
      expect_state(shape, states, record, head, latents.exact(leaf, exact, record, head, visible),
                   visible, Arithmetic::kBf16Weights);
    }
  }
}

// 66 heads: two units of a token, which has a list of its own.
TEST(CudaHopper, SelectionsOfManyHeadsHaveTheBitsOfAllRows) {
  const EmulatedHopper hopper;
  for (const AttendChoice choice : {AttendChoice::kAuto, AttendChoice::kMany2}) {
    const auto backend = make_cuda_backend({.attend_kernel = choice});
    const LatentShape shape{.kv_lora_rank = 512, .qk_rope_head_dim = 64, .heads = 66};
    LatentCase latents(*backend, shape, 8, 3);
    Normal normal(6);
    const std::vector<float> rows = normal.floats(std::size_t{kRows} * 576);
    const Leaf leaf = latents.add_leaf(rows);
    const Leaf even = [&] {
      std::vector<float> values;
      for (std::ptrdiff_t row = 0; row < kRows; row += 2) {
        values.insert(values.end(), rows.begin() + row * 576, rows.begin() + (row + 1) * 576);
      }
      return latents.add_leaf(values);
    }();
    const std::vector<float> queries = normal.floats(std::size_t{2} * 66 * 576, 0.3);
    std::vector<std::vector<std::int32_t>> lists(2);
    for (std::int32_t row = 0; row < kRows; ++row) {
      lists[0].push_back(row);
      if (row % 2 == 0) lists[1].push_back(row);
    }
    latents.select(lists);
    const std::vector<float> selected = latents.attend(
        {{.tokens = 2, .rows = kRows, .first_page = leaf.first_page, .query_position = kRows}},
        queries, 2);
    latents.select({});
    const std::vector<float> dense = latents.attend(
        {{.tokens = 1, .rows = kRows, .first_page = leaf.first_page, .query_position = kRows},
         {.tokens = 1,
          .rows = kRows / 2,
          .first_page = even.first_page,
          .query_position = kRows,
          .query = 1,
          .state = 1}},
        queries, 2);
    EXPECT_EQ(selected, dense);
  }
  EXPECT_EQ(device_fault(), "");
}

// 17 heads: the fewest that take the kernel; 66: two units of a token.
TEST(CudaHopper, RowsOfCodesGiveTheBitsOfTheirValues) {
  const EmulatedHopper hopper;
  const auto backend = make_cuda_backend({});
  for (const RowFormat format : formats_of_codes()) {
    expect_bits_of_values(*backend, {512, 64, 17, format});
  }
  expect_bits_of_values(*backend, {512, 64, 66, RowFormat::kFp8DsMla});
  EXPECT_EQ(device_fault(), "");
}

TEST(CudaHopper, ManyHeadsTakeTheKernelForManyRows) {
  const EmulatedHopper hopper;
  const auto backend = make_cuda_backend({});
  LatentCase latents(*backend, {.kv_lora_rank = 512, .qk_rope_head_dim = 64, .heads = 33}, 1, 3);
  const Leaf leaf = latents.add_leaf(std::vector<float>(576));
  fail_call("cudaFuncSetAttribute", 1, cudaErrorInvalidValue);
  EXPECT_EQ(message_of([&] {
              (void)latents.attend({{.tokens = 1, .rows = 1, .first_page = leaf.first_page}},
                                   std::vector<float>(std::size_t{33} * 576), 1);
            }),
            "attend, many rows: shared memory: CUDA says invalid argument (cudaErrorInvalidValue)");
}

/// States of two tokens of `heads` heads over 140 rows.
std::vector<float> attend_with(AttendChoice choice, int heads) {
  const auto backend = make_cuda_backend({.attend_kernel = choice});
  EXPECT_NE(backend->name().find(attend_choice_name(choice)), std::string_view::npos);
  LatentCase latents(*backend, {.kv_lora_rank = 512, .qk_rope_head_dim = 64, .heads = heads}, 4, 3);
  Normal normal(4);
  const Leaf leaf = latents.add_leaf(normal.floats(std::size_t{kRows} * 576));
  return latents.attend(
      {{.tokens = 2, .rows = kRows, .first_page = leaf.first_page, .query_position = kRows - 2}},
      normal.floats(2 * static_cast<std::size_t>(heads) * 576, 0.3), 2);
}

TEST(CudaHopper, AForcedKernelRunsAndOneBlockHasTheBitsOfTwo) {
  const EmulatedHopper hopper;
  const std::vector<float> one = attend_with(AttendChoice::kMany1, 5);
  EXPECT_EQ(attend_with(AttendChoice::kMany2, 5), one);
  const std::vector<float> exact = attend_with(AttendChoice::kGeneric, 5);
  const std::vector<float> few = attend_with(AttendChoice::kFew, 5);
  ASSERT_EQ(few.size(), exact.size());
  for (std::size_t i = 0; i < exact.size(); ++i) {
    ASSERT_NEAR(one[i], exact[i], 0.03) << i;
    ASSERT_NEAR(few[i], exact[i], 0.03) << i;
  }
}

TEST(CudaHopper, AForcedKernelThatTheDeviceDoesNotHaveIsRefused) {
  const auto backend = make_cuda_backend({.attend_kernel = AttendChoice::kMany1});
  const auto make = [&] {
    (void)backend->make_cache(
        {.layers = 1, .pages = 1, .kv_lora_rank = 512, .qk_rope_head_dim = 64});
  };
  EXPECT_EQ(code_of(make), ErrorCode::kUnsupported);
  EXPECT_NE(message_of(make).find("on sm_80; generic takes all"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Tokens, CudaHopperTokens, testing::Values(1, 2));

}  // namespace
}  // namespace tributary::test
