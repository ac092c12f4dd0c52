// Presets, bounds and softmax scale of model shapes.
#include "core/model/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "core/model/mla_shape.h"
#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(ModelPresets, AreValidAndInTheStatedOrder) {
  std::vector<std::string> names;
  for (const ModelShape& shape : model_presets()) {
    names.push_back(shape.name);
    EXPECT_NO_THROW(validate(shape)) << shape.name;
    EXPECT_EQ(find_model_shape(shape.name).name, shape.name);
    EXPECT_EQ(shape.latent_dim(), 576);
    EXPECT_EQ(shape.latent_norm_eps, 1e-6);
    if (shape.name == "glm-4.7-flash") continue;
    // All others publish these values.
    EXPECT_EQ(shape.qk_head_dim(), 192);
    EXPECT_EQ(shape.v_head_dim, 128);
    EXPECT_EQ(shape.rope.yarn->original_max_position_embeddings, 4096);
  }
  EXPECT_THAT(names, testing::ElementsAre("deepseek-v3", "deepseek-v2", "deepseek-v2-lite",
                                          "kimi-k2", "kimi-k2.5", "glm-4.7-flash"));
}

TEST(ModelPresets, DifferWhereThePublishedConfigsDiffer) {
  const ModelShape v3 = find_model_shape("deepseek-v3");
  EXPECT_EQ(v3.hidden_size, 7168);
  EXPECT_EQ(v3.num_attention_heads, 128);
  EXPECT_EQ(v3.num_hidden_layers, 61);
  EXPECT_EQ(v3.q_lora_rank, 1536);
  EXPECT_EQ(v3.max_position_embeddings, 163840);
  const ModelShape v2 = find_model_shape("deepseek-v2");
  EXPECT_EQ(v2.hidden_size, 5120);
  EXPECT_EQ(v2.num_attention_heads, 128);
  EXPECT_EQ(v2.num_hidden_layers, 60);
  EXPECT_EQ(v2.q_lora_rank, 1536);
  const ModelShape lite = find_model_shape("deepseek-v2-lite");
  EXPECT_EQ(lite.hidden_size, 2048);
  EXPECT_EQ(lite.num_attention_heads, 16);
  EXPECT_EQ(lite.num_hidden_layers, 27);
  EXPECT_EQ(lite.q_lora_rank, 0);
  const ModelShape kimi = find_model_shape("kimi-k2");
  EXPECT_EQ(kimi.hidden_size, 7168);
  EXPECT_EQ(kimi.num_attention_heads, 64);
  EXPECT_EQ(kimi.num_hidden_layers, 61);
  EXPECT_EQ(kimi.rope.theta, 50000);
  EXPECT_EQ(kimi.rope.yarn->factor, 32);
  EXPECT_EQ(kimi.rope.yarn->beta_fast, 1);
  EXPECT_EQ(kimi.rope.yarn->beta_slow, 1);
  const ModelShape kimi25 = find_model_shape("kimi-k2.5");
  EXPECT_EQ(kimi25.hidden_size, 7168);
  EXPECT_EQ(kimi25.num_attention_heads, 64);
  EXPECT_EQ(kimi25.rope.theta, 50000);
  EXPECT_EQ(kimi25.rope.yarn->factor, 64);
  EXPECT_EQ(kimi25.rope.yarn->beta_fast, 32);
  const ModelShape glm = find_model_shape("glm-4.7-flash");
  EXPECT_EQ(glm.hidden_size, 2048);
  EXPECT_EQ(glm.num_attention_heads, 20);
  EXPECT_EQ(glm.num_hidden_layers, 47);
  EXPECT_EQ(glm.q_lora_rank, 768);
  EXPECT_EQ(glm.qk_nope_head_dim, 192);
  EXPECT_EQ(glm.v_head_dim, 256);
  EXPECT_FALSE(glm.rope.yarn.has_value());
}

TEST(ModelPresets, OneWithoutWeightsIsRefusedWithWhatThereIs) {
  TRIBUTARY_EXPECT_ERROR((void)find_model_shape("kimi-k3"), ErrorCode::kInvalidArgument,
                         "there are deepseek-v3, deepseek-v2, deepseek-v2-lite, kimi-k2");
}

// Expected values worked out by hand (and by another program) from the formula; a few roundings of
// relative size 2^-53 each separate them from ours.
constexpr double kRoundings = 8 * 0x1p-53;

TEST(SoftmaxScale, MatchesHandComputedValues) {
  const auto expect = [](const std::string& preset, double scale) {
    EXPECT_NEAR(find_model_shape(preset).softmax_scale(), scale, kRoundings * scale) << preset;
  };
  expect("deepseek-v3", 0.1352337788608801);  // 192^-0.5 * (0.1 ln 40 + 1)^2
  expect("deepseek-v2", 0.1147213867929261);  // 192^-0.5 * (0.0707 ln 40 + 1)^2
  expect("deepseek-v2-lite", 0.1147213867929261);
  expect("kimi-k2", 0.13086079996295005);    // 192^-0.5 * (0.1 ln 32 + 1)^2
  expect("kimi-k2.5", 0.14467962580268923);  // 192^-0.5 * (0.1 ln 64 + 1)^2
  expect("glm-4.7-flash", 0.0625);
}

TEST(SoftmaxScale, IsPlainWithoutYarnOrWithoutMscale) {
  ModelShape shape = find_model_shape("deepseek-v3");
  const double plain = 0.07216878364870322;  // 192^-0.5
  shape.rope.yarn->mscale_all_dim = 0;
  EXPECT_NEAR(shape.softmax_scale(), plain, kRoundings * plain);
  shape.rope.yarn.reset();
  EXPECT_NEAR(shape.softmax_scale(), plain, kRoundings * plain);
}

struct Absurdity {
  std::string message;
  std::function<void(ModelShape&)> change;
};

TEST(Validate, RefusesEveryFieldOutsideItsBound) {
  const std::vector<Absurdity> absurdities = {
      {"hidden_size is 0", [](ModelShape& s) { s.hidden_size = 0; }},
      {"hidden_size is -1", [](ModelShape& s) { s.hidden_size = -1; }},
      {"hidden_size is 1048577, must be in 1 .. 1048576",
       [](ModelShape& s) { s.hidden_size = (1 << 20) + 1; }},
      {"num_hidden_layers is 0", [](ModelShape& s) { s.num_hidden_layers = 0; }},
      {"num_hidden_layers is 4097", [](ModelShape& s) { s.num_hidden_layers = 4097; }},
      {"num_attention_heads is 0", [](ModelShape& s) { s.num_attention_heads = 0; }},
      {"num_attention_heads is 4097", [](ModelShape& s) { s.num_attention_heads = 4097; }},
      {"q_lora_rank is -1", [](ModelShape& s) { s.q_lora_rank = -1; }},
      {"q_lora_rank is 65537", [](ModelShape& s) { s.q_lora_rank = 65537; }},
      {"kv_lora_rank is 0", [](ModelShape& s) { s.kv_lora_rank = 0; }},
      {"kv_lora_rank is 65537", [](ModelShape& s) { s.kv_lora_rank = 65537; }},
      {"qk_nope_head_dim is 0", [](ModelShape& s) { s.qk_nope_head_dim = 0; }},
      {"qk_rope_head_dim is 0", [](ModelShape& s) { s.qk_rope_head_dim = 0; }},
      {"qk_rope_head_dim is 63, must be even", [](ModelShape& s) { s.qk_rope_head_dim = 63; }},
      {"v_head_dim is 4097", [](ModelShape& s) { s.v_head_dim = 4097; }},
      {"max_position_embeddings is 0", [](ModelShape& s) { s.max_position_embeddings = 0; }},
      {"latent_norm_eps is 0", [](ModelShape& s) { s.latent_norm_eps = 0; }},
      {"latent_norm_eps is -1", [](ModelShape& s) { s.latent_norm_eps = -1; }},
      {"latent_norm_eps is nan", [](ModelShape& s) { s.latent_norm_eps = kNaN; }},
      {"latent_norm_eps is 1,", [](ModelShape& s) { s.latent_norm_eps = 1; }},
      {"rope_theta is 1,", [](ModelShape& s) { s.rope.theta = 1; }},
      {"rope_theta is nan", [](ModelShape& s) { s.rope.theta = kNaN; }},
      {"rope_theta is inf", [](ModelShape& s) { s.rope.theta = kInf; }},
      {"factor is 0.5", [](ModelShape& s) { s.rope.yarn->factor = 0.5; }},
      {"factor is inf", [](ModelShape& s) { s.rope.yarn->factor = kInf; }},
      {"beta_fast is 0.5, must be in 1 ..", [](ModelShape& s) { s.rope.yarn->beta_fast = 0.5; }},
      {"beta_slow is 0,", [](ModelShape& s) { s.rope.yarn->beta_slow = 0; }},
      {"mscale is -1", [](ModelShape& s) { s.rope.yarn->mscale = -1; }},
      {"mscale_all_dim is nan", [](ModelShape& s) { s.rope.yarn->mscale_all_dim = kNaN; }},
      {"original_max_position_embeddings is 0",
       [](ModelShape& s) { s.rope.yarn->original_max_position_embeddings = 0; }},
      {"YaRN ramp is empty",
       [](ModelShape& s) { s.rope.yarn->original_max_position_embeddings = 1; }},
  };
  for (const auto& [message, change] : absurdities) {
    SCOPED_TRACE(message);
    ModelShape shape = find_model_shape("deepseek-v3");
    change(shape);
    TRIBUTARY_EXPECT_ERROR(validate(shape), ErrorCode::kInvalidArgument, message);
  }
}

TEST(Validate, RefusesScaledRotationAsUnsupported) {
  ModelShape shape = find_model_shape("deepseek-v3");
  shape.rope.yarn->mscale_all_dim = 0.707;
  TRIBUTARY_EXPECT_ERROR(validate(shape), ErrorCode::kUnsupported, "mscale_all_dim 0.707");
  shape.rope.yarn->factor = 1;  // ln 1 = 0: both scales are 1
  EXPECT_NO_THROW(validate(shape));
}

}  // namespace
}  // namespace tributary
