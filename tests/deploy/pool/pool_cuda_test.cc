// A pool whose workers compute with the CUDA backend, on an emulated device that they share
// (tests/kernels/cuda/runtime): the same bits for any number of workers, any batch and any step.
// On a real GPU tests/gpu/cuda_replay_test.cc checks this.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_backend.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

/// Lengths across the borders of leaves of 64, and a sequence that begins empty.
PoolOutputs decode(const AttentionShape& shape, int workers, int max_batch, std::int32_t tokens,
                   Exchange exchange) {
  PoolSetup setup;
  setup.shape = shape;
  setup.workers = workers;
  setup.pages = 16;
  setup.layers = 1;
  setup.spread = workers == 1 ? SpreadPolicy::kSingle : SpreadPolicy::kAll;
  setup.exchange = exchange;
  setup.backend = [](int /*rank*/) { return make_cuda_backend({}); };
  return run_pool(setup,
                  [&](PoolLeader& leader) {
                    leader.decode(
                        {{1, 0, 2}, {2, 190, 4}, {3, 70, 3}},
                        {.max_batch = max_batch,
                         .tokens = [tokens](std::int64_t, std::int64_t) { return tokens; }});
                  })
      .outputs;
}

class PoolCuda : public testing::TestWithParam<AttentionShape> {};

TEST_P(PoolCuda, BitsAreTheSameForAnyNumberOfWorkersBatchAndStep) {
  const PoolOutputs expected = decode(GetParam(), 1, 1, 1, Exchange::kAuto);
  ASSERT_EQ(expected.size(), 9U);
  EXPECT_EQ(differing_outputs(expected, decode(GetParam(), 1, 10, 3, Exchange::kAuto)), 0U);
  EXPECT_EQ(differing_outputs(expected, decode(GetParam(), 2, 10, 2, Exchange::kAllToAll)), 0U);
  EXPECT_EQ(differing_outputs(expected, decode(GetParam(), 4, 10, 1, Exchange::kAllGather)), 0U);
}

constexpr AttentionShape kGeneric{.heads = 3,
                                  .kv_lora_rank = 24,
                                  .qk_rope_head_dim = 8,
                                  .row_format = RowFormat::kBF16,
                                  .query_dtype = DType::kF32,
                                  .softmax_scale = 0.25F};
constexpr AttentionShape kFewRows{.heads = 3,
                                  .kv_lora_rank = 512,
                                  .qk_rope_head_dim = 64,
                                  .row_format = RowFormat::kBF16,
                                  .query_dtype = DType::kBF16,
                                  .softmax_scale = 0.07F};

/// The same, but tokens attend to rows that they select, in some leaves to none.
constexpr AttentionShape selected(AttentionShape shape) {
  shape.topk = 20;
  return shape;
}

constexpr AttentionShape with_rows(AttentionShape shape, RowFormat format) {
  shape.row_format = format;
  return shape;
}

// The generic kernel, and the one for few rows; rows of codes too.
INSTANTIATE_TEST_SUITE_P(Kernels, PoolCuda,
                         testing::Values(kGeneric, kFewRows, selected(kGeneric), selected(kFewRows),
                                         with_rows(kGeneric, RowFormat::kFp8),
                                         with_rows(kFewRows, RowFormat::kFp8DsMla),
                                         with_rows(selected(kFewRows), RowFormat::kFp8DsMla)));

}  // namespace
}  // namespace tributary
