// A layer whose weights were published in FP8. With their scales it computes the same bits as with
// the widened weights, and each weight is kept in a byte.
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/layer/weight_views.h"
#include "kernels/cpu/amx_attend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/packed_weight.h"
#include "tests/core/layer/layer_runner.h"
#include "tests/core/layer/random_layer.h"

namespace tributary {
namespace {

/// Replaces the values by e4m3 numbers times the scales that it returns.
std::vector<float> publish(std::vector<float>& values, std::int64_t rows, std::int64_t cols) {
  std::mt19937 random(static_cast<unsigned>(rows * cols));
  const std::int64_t across = ceil_div(cols, kScaleBlock);
  std::vector<float> scales(static_cast<std::size_t>(ceil_div(rows, kScaleBlock) * across));
  for (float& scale : scales) scale = 1e-3F + 1e-6F * static_cast<float>(random() % 1000);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i) / cols;
    const auto col = static_cast<std::int64_t>(i) % cols;
    // Up to 60 x scale in size, of both signs.
    const auto code = static_cast<std::uint8_t>(random() % 103 + random() % 2 * 128);
    values[i] = f8_e4m3_to_float(code) *
                scales[static_cast<std::size_t>(row / kScaleBlock * across + col / kScaleBlock)];
  }
  return scales;
}

GoldenCase published_case(int q_lora_rank) {
  GoldenCase golden;
  ModelShape& shape = golden.shape;
  shape = test::odd_shape(q_lora_rank);
  shape.hidden_size = 200;
  shape.num_attention_heads = 4;
  shape.kv_lora_rank = 150;
  shape.qk_nope_head_dim = 64;
  shape.qk_rope_head_dim = 32;
  shape.v_head_dim = 128;
  LayerWeights& weights = golden.weights;
  weights = test::random_weights(shape, 11);
  LayerScales& scales = weights.scales;
  const std::int64_t query_rows = 4 * shape.qk_head_dim();
  if (q_lora_rank == 0) {
    scales.q_proj = publish(weights.q_proj, query_rows, 200);
  } else {
    scales.q_a_proj = publish(weights.q_a_proj, q_lora_rank, 200);
    scales.q_b_proj = publish(weights.q_b_proj, query_rows, q_lora_rank);
  }
  scales.kv_a_proj = publish(weights.kv_a_proj, 150 + 32, 200);
  scales.kv_b_proj = publish(weights.kv_b_proj, 4 * (64 + 128), 150);
  scales.o_proj = publish(weights.o_proj, 200, 4 * 128);
  golden.batch = 2;
  golden.prefill_len = 70;
  golden.decode_steps = 3;
  golden.hidden_states =
      test::random_floats(std::int64_t{golden.batch} * golden.tokens() * shape.hidden_size, 1, 12);
  return golden;
}

TEST(F8Layer, ScalesChangeNoBit) {
  // Where the query's rows end within a block (100), the joined matrix has no scales.
  for (const int q_lora_rank : {0, 128, 100}) {
    const GoldenCase golden = published_case(q_lora_rank);
    GoldenCase widened = golden;
    widened.weights.scales = {};
    for (const std::string_view set : cpu_instruction_sets()) {
      if (set == cpu::kAmxTableName) continue;  // products with FP8 have bits of their own
      const auto backend = make_cpu_backend({.threads = 2, .instruction_set = std::string(set)});
      const test::LayerRun got = test::run_layer(*backend, golden, {});
      EXPECT_TRUE(got == test::run_layer(*backend, widened, {})) << set << ", " << q_lora_rank;
      EXPECT_NE(got.decode_output.front(), 0);
    }
  }
}

TEST(F8Layer, JoinedScalesAreThoseOfTheJoinedMatrix) {
  const GoldenCase golden = published_case(128);
  const LayerScales& scales = golden.weights.scales;
  std::vector<float> rows = golden.weights.q_a_proj;
  rows.insert(rows.end(), golden.weights.kv_a_proj.begin(), golden.weights.kv_a_proj.end());
  cpu::ThreadPool pool(1);
  const auto joined = joined_scales(scales.q_a_proj, 128, scales.kv_a_proj);
  EXPECT_EQ(cpu::PackedWeight(matrix(rows, joined, 128 + 182, 200), pool).dtype(), DType::kF8E4M3);
  EXPECT_TRUE(joined_scales(scales.q_a_proj, 127, scales.kv_a_proj).empty());
  EXPECT_TRUE(joined_scales({}, 128, scales.kv_a_proj).empty());
  EXPECT_TRUE(joined_scales(scales.q_a_proj, 128, {}).empty());
}

}  // namespace
}  // namespace tributary
