// RoPE frequencies against hand-computed values, and against rotated keys of the published
// reference implementation.
#include "core/model/rope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/model/mla_shape.h"
#include "core/model/safetensors.h"
#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

TEST(RopeFrequencies, WithoutScalingIsAPowerOfTheta) {
  // 10000^(-2i/8): 1, 0.1, 0.01, 0.001; pow errs by less than one unit in the last place.
  const std::vector<double> expected = {1, 0.1, 0.01, 0.001};
  const std::vector<double> got = rope_frequencies({.theta = 10000, .yarn = {}}, 8);
  ASSERT_EQ(got.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(got[i], expected[i], 0x1p-51 * expected[i]);
}

TEST(RopeFrequencies, YarnRampOfDeepSeek) {
  // R = 64, L = 4096: corr(32) = 64 ln(4096 / 64 pi) / (2 ln 10^4) = 10.47, corr(1) = 22.51, so the
  // ramp climbs from pair 10 to pair 23.
  const ModelShape shape = find_model_shape("deepseek-v3");
  const std::vector<double> plain = rope_frequencies({.theta = 10000, .yarn = {}}, 64);
  const std::vector<double> scaled = rope_frequencies(shape.rope, 64);
  ASSERT_EQ(scaled.size(), 32U);
  for (std::size_t i = 0; i < 32; ++i) {
    const double ramp = i <= 10 ? 0.0 : i >= 23 ? 1.0 : (static_cast<double>(i) - 10) / 13;
    const double expected = plain[i] * (1 - ramp) + plain[i] / 40 * ramp;
    EXPECT_NEAR(scaled[i], expected, 0x1p-51 * expected) << "pair " << i;
  }
}

TEST(RopeFrequencies, EqualBetasOfKimiMakeAStep) {
  // corr(1) = 64 ln(4096 / 2 pi) / (2 ln 50000) = 19.16 for both: pairs up to 19 keep theirs.
  const ModelShape shape = find_model_shape("kimi-k2");
  const std::vector<double> plain = rope_frequencies({.theta = 50000, .yarn = {}}, 64);
  const std::vector<double> scaled = rope_frequencies(shape.rope, 64);
  for (std::size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(scaled[i], i <= 19 ? plain[i] : plain[i] / 32) << "pair " << i;
  }
}

TEST(RopeFrequencies, CoincidingRampEndsDoNotDivideByZero) {
  // dim 2: both ends are clamped to pair 0 .. 1; a ramp of width 0 arises when high is 0 too.
  YarnScaling yarn;
  yarn.factor = 4;
  yarn.original_max_position_embeddings = 6;  // below 2 pi: corr(1) is just below 0, ceil is -0
  for (const double frequency : rope_frequencies({.theta = 10000, .yarn = yarn}, 2)) {
    EXPECT_TRUE(std::isfinite(frequency));
  }
}

TEST(RopeFrequencies, RefusesWhatHasNoFrequencies) {
  const RopeConfig good;
  TRIBUTARY_EXPECT_ERROR(rope_frequencies(good, 63), ErrorCode::kInvalidArgument,
                         "dimension is 63");
  TRIBUTARY_EXPECT_ERROR(rope_frequencies(good, 0), ErrorCode::kInvalidArgument, "dimension is 0");
  TRIBUTARY_EXPECT_ERROR(rope_frequencies({.theta = 1, .yarn = {}}, 64),
                         ErrorCode::kInvalidArgument, "rope_theta is 1");
  TRIBUTARY_EXPECT_ERROR(
      rope_frequencies({.theta = std::numeric_limits<double>::quiet_NaN(), .yarn = {}}, 64),
      ErrorCode::kInvalidArgument, "rope_theta is nan");
  YarnScaling backwards;
  backwards.original_max_position_embeddings = 1;  // corr(1) = -6
  TRIBUTARY_EXPECT_ERROR(rope_frequencies({.theta = 10000, .yarn = backwards}, 64),
                         ErrorCode::kInvalidArgument, "YaRN ramp is empty");
}

/// Relative Frobenius distance between `f32.cache.pe` of a golden file and the rope keys of its
/// hidden states, projected and rotated here in double.
double golden_key_error(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  const ModelShape shape = parse_model_config(file.header().metadata.at("config"), path.string());
  const std::vector<double> weight = to_doubles(file.tensor("self_attn.kv_a_proj_with_mqa.weight"));
  const TensorView& hidden_view = file.tensor("input.hidden_states");
  const std::vector<double> hidden = to_doubles(hidden_view);
  const std::vector<double> expected = to_doubles(file.tensor("f32.cache.pe"));
  const std::vector<double> frequencies = rope_frequencies(shape.rope, shape.qk_rope_head_dim);

  const auto width = static_cast<std::size_t>(shape.hidden_size);
  const auto rope_dim = static_cast<std::size_t>(shape.qk_rope_head_dim);
  const auto rank = static_cast<std::size_t>(shape.kv_lora_rank);
  const auto tokens = static_cast<std::size_t>(hidden_view.shape.at(1));
  double difference = 0;
  double norm = 0;
  for (std::size_t row = 0; row < hidden.size() / width; ++row) {
    const auto project = [&](std::size_t i) {
      double sum = 0;
      for (std::size_t k = 0; k < width; ++k) {
        sum += weight[(rank + i) * width + k] * hidden[row * width + k];
      }
      return sum;
    };
    for (std::size_t pair = 0; pair < rope_dim / 2; ++pair) {
      const double angle = static_cast<double>(row % tokens) * frequencies[pair];
      const double re = project(2 * pair);
      const double im = project(2 * pair + 1);
      const double* want = &expected[row * rope_dim + 2 * pair];
      difference += std::pow(re * std::cos(angle) - im * std::sin(angle) - want[0], 2) +
                    std::pow(re * std::sin(angle) + im * std::cos(angle) - want[1], 2);
      norm += want[0] * want[0] + want[1] * want[1];
    }
  }
  return std::sqrt(difference / norm);
}

// The reference works in float32: its angles (up to 206) are off by 206 * 2^-24 = 1.2e-5, its sums
// by less. Leaving YaRN out, or shifting the ramp by one pair, moves the keys by more than 1e-3.
constexpr double kGoldenBound = 3e-5;

TEST(RopeFrequencies, RotateTheGoldenKeysOfTiny) {
  EXPECT_LT(golden_key_error(test::tiny_safetensors()), kGoldenBound);
}

TEST(RopeFrequencies, RotateTheGoldenKeysWithYarn) {
  const auto path = test::shared_file("golden/v3-slim.safetensors");
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "absent: " << path;
  EXPECT_LT(golden_key_error(path), kGoldenBound);
}

}  // namespace
}  // namespace tributary
