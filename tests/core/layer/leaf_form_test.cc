// The layer of a pool that projects at its leaves: without its two products, the rest has the bits
// of the whole.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "core/layer/mla_layer.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/layer/layer_runner.h"
#include "tests/core/layer/random_layer.h"

namespace tributary {
namespace {

using test::DeviceFloats;

constexpr std::int64_t kTokens = 7;

class LeafForm : public testing::TestWithParam<std::tuple<bool, int>> {  // CPU, q_lora_rank
 protected:
  [[nodiscard]] DeviceFloats floats(std::int64_t count) const { return {*backend_, count}; }

  std::unique_ptr<Backend> backend_ =
      std::get<0>(GetParam()) ? make_cpu_backend({}) : make_reference_backend();
  ModelShape shape_ = test::odd_shape(std::get<1>(GetParam()));
  // Chunks of five tokens, so that the last one is another product.
  MlaLayer layer_{
      *backend_, shape_, test::random_weights(shape_, 11),
      std::make_shared<MlaWorkspace>(*backend_, shape_, MlaWorkspaceOptions{.max_tokens = 5})};
  std::int64_t heads_ = shape_.num_attention_heads;
};

TEST_P(LeafForm, QueriesAbsorbedLaterAreTheAbsorbedOnes) {
  const std::int64_t plain_width = shape_.qk_head_dim();
  const std::int64_t width = shape_.latent_dim();
  const DeviceFloats hidden(*backend_, test::random_floats(kTokens * shape_.hidden_size, 1, 12));
  const auto positions = test::positions_from(1000, kTokens);
  const DeviceFloats rows = floats(kTokens * width);
  const DeviceFloats same_rows = floats(kTokens * width);
  const DeviceFloats queries = floats(kTokens * heads_ * width);
  const DeviceFloats plain = floats(kTokens * heads_ * plain_width);
  const DeviceFloats later = floats(kTokens * heads_ * width);
  layer_.project(kTokens, hidden.data(), positions, queries.data(), rows.data());
  layer_.project(ProjectAt::kLeaves, kTokens, hidden.data(), positions, plain.data(),
                 same_rows.data());
  EXPECT_EQ(same_rows.host(), rows.host());
  backend_->call(GemmArgs{.weight = layer_.leaf_weights().w_uk,
                          .tokens = kTokens,
                          .x = plain.data(),
                          .x_token_stride = heads_ * plain_width,
                          .x_batch_stride = plain_width,
                          .y = later.data(),
                          .y_token_stride = heads_ * width,
                          .y_batch_stride = width});
  std::vector<float> got = later.host();
  const std::vector<float> before = plain.host();
  for (std::int64_t i = 0; i < kTokens * heads_; ++i) {
    std::copy_n(before.begin() + i * plain_width + shape_.qk_nope_head_dim, shape_.qk_rope_head_dim,
                got.begin() + i * width + shape_.kv_lora_rank);
  }
  EXPECT_EQ(got, queries.host());
}

TEST_P(LeafForm, OutputsOfProjectedStatesAreThoseOfStates) {
  const StateShape wide{.heads = shape_.num_attention_heads, .width = shape_.kv_lora_rank};
  const StateShape narrow{.heads = shape_.num_attention_heads, .width = shape_.v_head_dim};
  const auto record = static_cast<std::int64_t>(narrow.record_floats());
  const std::int64_t values_width = heads_ * narrow.width;
  const DeviceFloats states(
      *backend_,
      test::random_floats(kTokens * static_cast<std::int64_t>(wide.record_floats()), 1, 3));
  const DeviceFloats values = floats(kTokens * values_width);
  layer_.values(kTokens, states.data(), values.data());
  const std::vector<float> values_host = values.host();
  std::vector<float> records(static_cast<std::size_t>(kTokens * record));
  for (std::int64_t t = 0; t < kTokens; ++t) {
    std::copy_n(values_host.begin() + t * values_width, values_width, records.begin() + t * record);
  }
  const DeviceFloats projected(*backend_, records);
  const DeviceFloats copied = floats(kTokens * values_width);
  layer_.values(kTokens, projected.data(), copied.data(), ProjectAt::kLeaves);
  EXPECT_EQ(copied.host(), values_host);
  const DeviceFloats expected = floats(kTokens * shape_.hidden_size);
  const DeviceFloats output = floats(kTokens * shape_.hidden_size);
  layer_.output(kTokens, states.data(), expected.data());
  layer_.output(kTokens, projected.data(), output.data(), ProjectAt::kLeaves);
  EXPECT_EQ(output.host(), expected.host());
}

INSTANTIATE_TEST_SUITE_P(, LeafForm, testing::Combine(testing::Bool(), testing::Values(0, 31)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "Cpu" : "Reference") +
                                  (std::get<1>(info.param) == 0 ? "" : "LowRank");
                         });

}  // namespace
}  // namespace tributary
