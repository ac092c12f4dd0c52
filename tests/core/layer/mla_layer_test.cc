// The layer on each backend: against the float64 reference for odd shapes, and bit for bit against
// itself however the tokens are grouped. Golden vectors: tests/deploy/app/verify_test.cc.
#include "core/layer/mla_layer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/layer/layer_runner.h"
#include "tests/core/layer/random_layer.h"
#include "tests/core/reference/golden_files.h"
#include "tests/core/reference/mla_reference.h"
#include "tests/core/reference/reference_state.h"

namespace tributary {
namespace {

using test::DeviceFloats;
using test::expect_close;
using test::expect_lse_close;
using test::LayerRun;
using test::run_layer;

/// `reference`, and `cpu/` with every instruction set of this machine.
std::vector<std::string> backend_names() {
  std::vector<std::string> names = {"reference"};
  for (const std::string_view set : cpu_instruction_sets())
    names.push_back("cpu/" + std::string(set));
  return names;
}

std::unique_ptr<Backend> make_backend(const std::string& name) {
  if (name == "reference") return make_reference_backend();
  return make_cpu_backend({.threads = 2, .instruction_set = name.substr(name.find('/') + 1)});
}

std::string test_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

/// A case without expected values: two sequences of an odd shape whose prompts take two chunks of
/// keys and three pages, so that steps cross a page's border.
GoldenCase odd_case(int q_lora_rank) {
  GoldenCase golden;
  golden.name = "odd";
  golden.shape = test::odd_shape(q_lora_rank);
  golden.weights = test::random_weights(golden.shape, 11);
  golden.batch = 2;
  golden.prefill_len = kPrefillKeyChunk + 62;
  golden.decode_steps = 5;
  golden.hidden_states = test::random_floats(
      std::int64_t{golden.batch} * golden.tokens() * golden.shape.hidden_size, 1, 12);
  return golden;
}

using OddParameters = std::tuple<std::string, int>;  // backend, q_lora_rank

class OddLayer : public testing::TestWithParam<OddParameters> {
 protected:
  OddLayer()
      : backend_(make_backend(std::get<0>(GetParam()))),
        golden_(odd_case(std::get<1>(GetParam()))) {}

  [[nodiscard]] MlaLayer layer(int max_tokens, bool prefill = true) const {
    return {*backend_, golden_.shape, golden_.weights,
            std::make_shared<MlaWorkspace>(
                *backend_, golden_.shape,
                MlaWorkspaceOptions{.max_tokens = max_tokens, .prefill = prefill})};
  }
  [[nodiscard]] DeviceFloats input() const { return {*backend_, golden_.hidden_states}; }
  [[nodiscard]] DeviceFloats floats(std::int64_t count) const { return {*backend_, count}; }

  std::unique_ptr<Backend> backend_;
  GoldenCase golden_;
};

// Six products and two softmax passes in fp32 at unit roundoff 2^-24 = 6e-8: sums of at most 90
// terms that grow like sqrt(90) give 6e-7 each, scores of a few units turn that into relative
// errors of a few 1e-6 of the weights. 2e-5 is several times that; the smallest mistake that the
// golden README lists moves outputs by 0.06.
TEST_P(OddLayer, AgreesWithTheReference) {
  constexpr double kRelative = 2e-5;
  const ModelShape& shape = golden_.shape;
  const MlaReference reference(shape, golden_.weights);
  const LayerRun run = run_layer(*backend_, golden_, {});
  const auto positions = test::positions_from(0, golden_.tokens());
  const auto tokens = static_cast<std::size_t>(golden_.tokens());
  const auto prompt = static_cast<std::size_t>(golden_.prefill_len);
  const auto hidden_size = static_cast<std::size_t>(shape.hidden_size);
  const auto latent_dim = static_cast<std::size_t>(shape.latent_dim());
  const auto query_width =
      static_cast<std::size_t>(std::int64_t{shape.num_attention_heads} * shape.qk_head_dim());
  const std::size_t absorbed_width =
      static_cast<std::size_t>(shape.num_attention_heads) * latent_dim;
  const std::size_t steps = tokens - prompt;
  for (std::size_t b = 0; b < static_cast<std::size_t>(golden_.batch); ++b) {
    const auto hidden = std::span<const float>(golden_.hidden_states)
                            .subspan(b * tokens * hidden_size, tokens * hidden_size);
    const auto rows = reference.latent_rows(hidden, positions);
    const auto queries = reference.queries(hidden, positions);
    const std::span<const double> all_rows(rows);
    const std::span<const double> all_queries(queries);
    const auto of_sequence = [&](const std::vector<float>& values, std::size_t count) {
      return std::span<const float>(values).subspan(b * count, count);
    };
    expect_close("rows", of_sequence(run.rows, tokens * latent_dim), rows, shape.latent_dim(),
                 kRelative, kRelative);
    expect_close("prefill", of_sequence(run.prefill_output, prompt * hidden_size),
                 reference.prefill(all_queries.first(prompt * query_width),
                                   all_rows.first(prompt * latent_dim)),
                 shape.hidden_size, kRelative, kRelative);
    const auto absorbed = reference.absorb(all_queries.subspan(prompt * query_width));
    expect_close("queries", of_sequence(run.decode_query, steps * absorbed_width), absorbed,
                 shape.latent_dim(), kRelative, kRelative);
    std::vector<double> latents;
    std::vector<double> lse;
    for (std::size_t d = 0; d < steps; ++d) {
      const ReferenceState state = reference_attend(
          shape.num_attention_heads, shape.kv_lora_rank, shape.qk_rope_head_dim,
          shape.softmax_scale(),
          std::span<const double>(absorbed).subspan(d * absorbed_width, absorbed_width),
          all_rows.first((prompt + d + 1) * latent_dim));
      latents.insert(latents.end(), state.o.begin(), state.o.end());
      lse.insert(lse.end(), state.lse.begin(), state.lse.end());
    }
    expect_close("latents", of_sequence(run.decode_latent, latents.size()), latents,
                 shape.kv_lora_rank, kRelative, kRelative);
    expect_lse_close("lse", of_sequence(run.decode_lse, lse.size()), lse, kRelative);
    expect_close("output", of_sequence(run.decode_output, steps * hidden_size),
                 reference.output(latents), shape.hidden_size, kRelative, kRelative);
  }
}

TEST_P(OddLayer, WorkspaceSizeChangesNoBit) {
  const LayerRun whole = run_layer(*backend_, golden_, {.max_tokens = 512});
  for (const int max_tokens : {7, 64}) {
    EXPECT_TRUE(run_layer(*backend_, golden_, {.max_tokens = max_tokens}) == whole) << max_tokens;
  }
}

TEST_P(OddLayer, TokensOfAStepChangeNoBit) {
  const LayerRun one = run_layer(*backend_, golden_, {.step_tokens = 1});
  for (const int step_tokens : {2, 5}) {
    EXPECT_TRUE(run_layer(*backend_, golden_, {.step_tokens = step_tokens}) == one) << step_tokens;
  }
}

// Every token alone gives the bits that it has among others: rows, queries and outputs.
TEST_P(OddLayer, OtherTokensChangeNoBit) {
  const ModelShape& shape = golden_.shape;
  constexpr std::int64_t kTokens = 37;
  const std::int64_t query_width = std::int64_t{shape.num_attention_heads} * shape.latent_dim();
  const StateShape state{.heads = shape.num_attention_heads, .width = shape.kv_lora_rank};
  const auto record = static_cast<std::int64_t>(state.record_floats());
  MlaLayer subject = layer(64);
  const DeviceFloats hidden = input();
  const DeviceFloats states(*backend_, test::random_floats(kTokens * record, 1, 3));
  const auto positions = test::positions_from(1000, kTokens);
  const DeviceFloats rows = floats(kTokens * shape.latent_dim());
  const DeviceFloats prefill_rows = floats(kTokens * shape.latent_dim());
  const DeviceFloats queries = floats(kTokens * query_width);
  const DeviceFloats outputs = floats(kTokens * shape.hidden_size);
  subject.project(kTokens, hidden.data(), positions, queries.data(), rows.data());
  subject.latent_rows(kTokens, hidden.data(), positions, prefill_rows.data());
  subject.output(kTokens, states.data(), outputs.data());
  EXPECT_EQ(prefill_rows.host(), rows.host());

  const DeviceFloats one_rows = floats(kTokens * shape.latent_dim());
  const DeviceFloats one_queries = floats(kTokens * query_width);
  const DeviceFloats one_outputs = floats(kTokens * shape.hidden_size);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    subject.project(1, hidden.data() + t * shape.hidden_size,
                    std::span(positions).subspan(static_cast<std::size_t>(t), 1),
                    one_queries.data() + t * query_width, one_rows.data() + t * shape.latent_dim());
    subject.output(1, states.data() + t * record, one_outputs.data() + t * shape.hidden_size);
  }
  EXPECT_EQ(one_rows.host(), rows.host());
  EXPECT_EQ(one_queries.host(), queries.host());
  EXPECT_EQ(one_outputs.host(), outputs.host());
}

// A prompt in pieces, each of which knows only the rows stored so far.
TEST_P(OddLayer, PrefillInPiecesChangesNoBit) {
  const ModelShape& shape = golden_.shape;
  const std::int64_t tokens = golden_.prefill_len;
  MlaLayer subject = layer(48);
  const DeviceFloats hidden = input();
  const DeviceFloats rows = floats(tokens * shape.latent_dim());
  subject.latent_rows(tokens, hidden.data(), test::positions_from(0, tokens), rows.data());
  const DeviceFloats whole = floats(tokens * shape.hidden_size);
  subject.prefill_attention(tokens, hidden.data(), 0, tokens, rows.data(), whole.data());
  const DeviceFloats pieces = floats(tokens * shape.hidden_size);
  std::int64_t begin = 0;
  for (const std::int64_t count :
       {std::int64_t{1}, std::int64_t{70}, std::int64_t{0}, std::int64_t{57}, tokens - 128}) {
    subject.prefill_attention(count, hidden.data() + begin * shape.hidden_size, begin,
                              begin + count, rows.data(),
                              pieces.data() + begin * shape.hidden_size);
    begin += count;
  }
  ASSERT_EQ(begin, tokens);
  EXPECT_EQ(pieces.host(), whole.host());
}

TEST_P(OddLayer, RefusesBadArguments) {
  constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
  MlaLayer subject = layer(8);
  const DeviceFloats memory = floats(1000);
  float* data = memory.data();
  const auto two = test::positions_from(0, 2);
  const std::vector<std::int64_t> negative = {4, -1};
  TRIBUTARY_EXPECT_ERROR(subject.latent_rows(3, data, two, data), kBad, "2 positions for 3 tokens");
  TRIBUTARY_EXPECT_ERROR(subject.project(2, data, negative, data, data), kBad,
                         "position -1 of token 1");
  TRIBUTARY_EXPECT_ERROR(subject.output(-1, data, data), kBad, "-1 tokens");
  TRIBUTARY_EXPECT_ERROR(subject.prefill_attention(2, data, -3, 9, data, data), kBad,
                         "first position -3");
  TRIBUTARY_EXPECT_ERROR(subject.prefill_attention(4, data, 6, 9, data, data), kBad,
                         "9 stored rows for tokens at positions 6 to 9");
  MlaLayer decode_only = layer(8, false);
  TRIBUTARY_EXPECT_ERROR(decode_only.prefill_attention(1, data, 0, 1, data, data),
                         ErrorCode::kFailedPrecondition, "without prefill");
}

TEST_P(OddLayer, NoTokensAreNoWork) {
  MlaLayer subject = layer(8);
  subject.latent_rows(0, nullptr, {}, nullptr);
  subject.project(0, nullptr, {}, nullptr, nullptr);
  subject.prefill_attention(0, nullptr, 5, 5, nullptr, nullptr);
  subject.output(0, nullptr, nullptr);
}

TEST_P(OddLayer, NormsOfLatentsHaveTheEpsilonOfTheShape) {
  golden_.shape.latent_norm_eps = 0.5;
  const ModelShape& shape = golden_.shape;
  const MlaReference reference(shape, golden_.weights);
  const LayerRun run = run_layer(*backend_, golden_, {});
  const auto positions = test::positions_from(0, golden_.tokens());
  const auto tokens = static_cast<std::size_t>(golden_.tokens());
  const auto hidden = std::span<const float>(golden_.hidden_states)
                          .first(tokens * static_cast<std::size_t>(shape.hidden_size));
  const auto rows = reference.latent_rows(hidden, positions);
  constexpr double kRelative = 2e-5;  // as above
  expect_close("rows", std::span<const float>(run.rows).first(rows.size()), rows,
               shape.latent_dim(), kRelative, kRelative);
  const auto usual = MlaReference(odd_case(shape.q_lora_rank).shape, golden_.weights)
                         .latent_rows(hidden, positions);
  EXPECT_GT(std::abs(usual[0] - rows[0]), 0.01 * std::abs(usual[0]));
}

TEST_P(OddLayer, RefusesWhatDoesNotBelongTogether) {
  constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
  const ModelShape& shape = golden_.shape;
  const auto workspace =
      std::make_shared<MlaWorkspace>(*backend_, shape, MlaWorkspaceOptions{.max_tokens = 4});
  LayerWeights weights = golden_.weights;
  weights.kv_b_proj.pop_back();
  TRIBUTARY_EXPECT_ERROR(MlaLayer(*backend_, shape, weights, workspace), kBad, "kv_b_proj");
  weights = golden_.weights;
  weights.scales.o_proj.resize(1000);
  TRIBUTARY_EXPECT_ERROR(MlaLayer(*backend_, shape, weights, workspace), kBad,
                         "weight o_proj: 1000 block scales, expected none or");
  const auto other = make_reference_backend();
  TRIBUTARY_EXPECT_ERROR(MlaLayer(*other, shape, golden_.weights, workspace), kBad,
                         "another backend");
  TRIBUTARY_EXPECT_ERROR(MlaLayer(*backend_, shape, golden_.weights, nullptr), kBad,
                         "another backend");
  const ModelShape changed = test::odd_shape(shape.q_lora_rank + 1);
  TRIBUTARY_EXPECT_ERROR(MlaLayer(*backend_, changed, test::random_weights(changed, 1), workspace),
                         kBad, "another shape");
  TRIBUTARY_EXPECT_ERROR(MlaWorkspace(*backend_, shape, MlaWorkspaceOptions{.max_tokens = 0}), kBad,
                         "max_tokens 0");
}

INSTANTIATE_TEST_SUITE_P(Backends, OddLayer,
                         testing::Combine(testing::ValuesIn(backend_names()),
                                          testing::Values(0, 31)),
                         [](const auto& info) {
                           return test_name(std::get<0>(info.param) + "_q_lora_" +
                                            std::to_string(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace tributary
