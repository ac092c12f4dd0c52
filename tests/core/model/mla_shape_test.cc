// Shapes of pools without weights: presets, files, and the config.json of models that are not ours.
#include "core/model/mla_shape.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/model/model_shape.h"
#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

using Json = nlohmann::json;

void expect_equal(const MlaShape& a, const MlaShape& b) {
  EXPECT_EQ(a.heads, b.heads) << a.name;
  EXPECT_EQ(a.kv_lora_rank, b.kv_lora_rank) << a.name;
  EXPECT_EQ(a.qk_rope_head_dim, b.qk_rope_head_dim) << a.name;
  EXPECT_EQ(a.layers, b.layers) << a.name;
  EXPECT_EQ(a.softmax_scale, b.softmax_scale) << a.name;
  EXPECT_EQ(a.topk, b.topk) << a.name;
}

MlaShape parse(std::string_view json) {
  return parse_mla_shape(json, "shape.json");
}

/// `base` with the keys of `patch`; null removes one.
std::string patched(std::string_view base, std::string_view patch) {
  Json json = Json::parse(base);
  json.merge_patch(Json::parse(patch));
  return json.dump();
}

constexpr std::string_view kFields =
    R"({"heads": 9, "kv_lora_rank": 192, "qk_rope_head_dim": 0, "layers": 30,
        "softmax_scale": 0.125})";
// The attention keys of what the models' makers publish.
constexpr std::string_view kMiniCpm3 =
    R"({"model_type": "minicpm3", "hidden_size": 2560, "num_attention_heads": 40,
        "num_key_value_heads": 40, "num_hidden_layers": 62, "q_lora_rank": 768, "kv_lora_rank": 256,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32,
        "rope_scaling": {"type": "longrope", "original_max_position_embeddings": 32768}})";
constexpr std::string_view kLongCat =
    R"({"model_type": "longcat_flash", "num_attention_heads": 64, "num_layers": 28,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "mla_scale_kv_lora": true})";
constexpr std::string_view kSmolLm2 =
    R"({"model_type": "llama", "hidden_size": 576, "num_attention_heads": 9,
        "num_key_value_heads": 3, "num_hidden_layers": 30, "rope_theta": 100000})";

constexpr std::string_view kDeepSeekV3 =
    R"({"model_type": "deepseek_v3", "hidden_size": 7168, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "num_attention_heads": 128, "num_hidden_layers": 61,
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-06, "rope_theta": 10000, "v_head_dim": 128,
        "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                         "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                         "type": "yarn"}})";

TEST(MlaPresets, AreValidAndInTheStatedOrder) {
  std::vector<std::string> names;
  for (const MlaShape& shape : mla_presets()) {
    names.push_back(shape.name);
    EXPECT_NO_THROW(validate(shape)) << shape.name;
    EXPECT_TRUE(is_mla_preset(shape.name));
    expect_equal(find_mla_shape(shape.name), shape);
  }
  EXPECT_THAT(names, testing::ElementsAre("deepseek-v3", "deepseek-v2", "deepseek-v2-lite",
                                          "kimi-k2", "kimi-k2.5", "glm-4.7-flash", "deepseek-v3.2",
                                          "kimi-k3", "glm-5", "longcat-flash", "minicpm3"));
}

TEST(MlaPresets, ThoseOfModelsAreTheModels) {
  for (const ModelShape& model : model_presets()) {
    const MlaShape shape = find_mla_shape(model.name);
    EXPECT_EQ(shape.heads, model.num_attention_heads);
    EXPECT_EQ(shape.kv_lora_rank + shape.qk_rope_head_dim, model.latent_dim());
    EXPECT_EQ(shape.layers, model.num_hidden_layers);
    EXPECT_EQ(shape.softmax_scale, model.softmax_scale());
  }
}

TEST(MlaPresets, AreWhatTheirConfigsGive) {
  expect_equal(parse(kMiniCpm3), find_mla_shape("minicpm3"));
  expect_equal(parse(kLongCat), find_mla_shape("longcat-flash"));
  expect_equal(parse(R"({"model_type": "glm_moe_dsa", "num_attention_heads": 64,
                         "num_hidden_layers": 78, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
                         "qk_rope_head_dim": 64, "index_topk": 2048,
                         "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"}})"),
               find_mla_shape("glm-5"));
  // A model that sees keeps its text's keys in an object of their own. 24 of its 93 layers attend.
  Json attending = Json::array();
  for (int layer = 4; layer <= 92; layer += 4) attending.push_back(layer);
  attending.push_back(93);
  Json config = Json::parse(R"({"model_type": "kimi_k3", "text_config": {
      "model_type": "kimi_linear", "num_attention_heads": 96, "num_hidden_layers": 93,
      "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "mla_use_nope": true,
      "linear_attn_config": {}}})");
  config["text_config"]["linear_attn_config"]["full_attn_layers"] = attending;
  expect_equal(parse(config.dump()), find_mla_shape("kimi-k3"));
}

TEST(MlaShapes, OfAModelThatSelectsRowsAreThoseOfDeepSeekV3) {
  const std::string config = patched(
      kDeepSeekV3, R"({"model_type": "deepseek_v32", "index_topk": 2048, "index_n_heads": 64,
                       "index_head_dim": 128})");
  expect_equal(parse(config), find_mla_shape("deepseek-v3.2"));
  EXPECT_EQ(parse(config).name, "deepseek_v32");
  TRIBUTARY_EXPECT_ERROR(parse(patched(config, R"({"index_topk": null})")),
                         ErrorCode::kMalformedInput, "index_topk");
  TRIBUTARY_EXPECT_ERROR(parse(patched(config, R"({"index_topk": 0})")), ErrorCode::kMalformedInput,
                         "index_topk is 0, must be at least 1");
}

TEST(MlaShapes, OfAFileAreItsFields) {
  const MlaShape shape = parse(kFields);
  EXPECT_EQ(shape.name, "shape.json");
  expect_equal(shape, {.name = "",
                       .heads = 9,
                       .kv_lora_rank = 192,
                       .qk_rope_head_dim = 0,
                       .layers = 30,
                       .softmax_scale = 0.125,
                       .topk = 0});
  EXPECT_EQ(parse(patched(kFields, R"({"name": "mine"})")).name, "mine");
  EXPECT_EQ(parse(patched(kFields, R"({"topk": 40})")).topk, 40);
  for (const char* topk : {"-1", "65537"}) {
    TRIBUTARY_EXPECT_ERROR(parse(patched(kFields, fmt::format(R"({{"topk": {}}})", topk))),
                           ErrorCode::kMalformedInput, "topk is");
  }
}

TEST(MlaShapes, OfAGroupedModelHaveRowsOfAllItsValuesAndKeys) {
  const MlaShape shape = parse(kSmolLm2);
  EXPECT_EQ(shape.name, "llama");
  expect_equal(shape, {.name = "",
                       .heads = 9,
                       .kv_lora_rank = 192,
                       .qk_rope_head_dim = 192,
                       .layers = 30,
                       .softmax_scale = 0.125,
                       .topk = 0});
  // Without KV heads each head has its own; a stated head_dim need not be hidden_size / heads.
  EXPECT_EQ(parse(patched(kSmolLm2, R"({"num_key_value_heads": null})")).kv_lora_rank, 576);
  EXPECT_EQ(parse(patched(kSmolLm2, R"({"head_dim": 128})")).kv_lora_rank, 384);
  // The widest: 16 KV heads of 128. One more is too wide.
  EXPECT_EQ(
      parse(patched(kSmolLm2, R"({"head_dim": 128, "num_key_value_heads": 16})")).kv_lora_rank,
      kMaxGroupedWidth / 2);
  TRIBUTARY_EXPECT_ERROR(
      parse(patched(kSmolLm2, R"({"head_dim": 128, "num_key_value_heads": 17})")),
      ErrorCode::kUnsupported,
      "17 KV heads of 128 have 2176 values of V and as many of K; at most 2048 "
      "each: every query head multiplies the whole row, 17 times");
}

TEST(MlaShapes, OfDeepSeekReadNothingAboutWeightsNormsAndRotation) {
  expect_equal(parse(kDeepSeekV3), find_mla_shape("deepseek-v3"));
  // All that a shape is made of.
  const Json whole = Json::parse(kDeepSeekV3);
  Json alone;
  for (const char* key : {"model_type", "num_attention_heads", "num_hidden_layers", "kv_lora_rank",
                          "qk_nope_head_dim", "qk_rope_head_dim"}) {
    alone[key] = whole[key];
  }
  alone["rope_scaling"] = {{"type", "yarn"}, {"factor", 40}, {"mscale_all_dim", 1.0}};
  expect_equal(parse(alone.dump()), find_mla_shape("deepseek-v3"));
  for (const char* patch :
       {R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})",
        R"({"quantization_config": {"quant_method": "fp8", "activation_scheme": "static"}})",
        R"({"attention_bias": true})", R"({"qk_layernorm": true})", R"({"num_key_value_heads": 1})",
        R"({"rope_scaling": {"mscale": 0.5}})", R"({"partial_rotary_factor": 0.5})"}) {
    SCOPED_TRACE(patch);
    expect_equal(parse(patched(kDeepSeekV3, patch)), find_mla_shape("deepseek-v3"));
  }
  // Rotation is the engine's.
  expect_equal(parse(patched(kDeepSeekV3, R"({"rope_interleave": false})")),
               find_mla_shape("deepseek-v3"));
}

TEST(MlaShapes, MalformedOnesNameTheKey) {
  const auto expect = [](std::string_view patch, std::string_view text) {
    TRIBUTARY_EXPECT_ERROR(parse(patched(kFields, patch)), ErrorCode::kMalformedInput,
                           std::string(text));
  };
  expect(R"({"heads": null})", "heads is missing");
  expect(R"({"heads": "9"})", "heads is");
  expect(R"({"heads": 0})", "heads is 0, must be in 1 .. 4096");
  expect(R"({"kv_lora_rank": 65537})", "kv_lora_rank is 65537");
  expect(R"({"qk_rope_head_dim": -1})", "qk_rope_head_dim is -1, must be in 0 .. 65536");
  expect(R"({"layers": 5000})", "layers is 5000");
  expect(R"({"softmax_scale": 0})", "softmax_scale is 0");
  expect(R"({"softmax_scale": -1})", "softmax_scale is -1");
  expect(R"({"head": 3})", "'head' is no key of a shape");
  TRIBUTARY_EXPECT_ERROR(parse("[1]"), ErrorCode::kMalformedInput, "must be a JSON object");
  TRIBUTARY_EXPECT_ERROR(parse("{"), ErrorCode::kMalformedInput, "shape.json");
  TRIBUTARY_EXPECT_ERROR(parse(std::string(std::size_t{9} << 20, ' ')), ErrorCode::kMalformedInput,
                         "9437184 bytes");
}

TEST(MlaShapes, AbsurdConfigsAreRefused) {
  const auto expect = [](std::string_view base, std::string_view patch, std::string_view text) {
    TRIBUTARY_EXPECT_ERROR(parse(patched(base, patch)), ErrorCode::kMalformedInput,
                           std::string(text));
  };
  expect(kMiniCpm3, R"({"qk_nope_head_dim": -64})", "qk_nope_head_dim is -64");
  expect(kLongCat, R"({"num_layers": 2147483647})", "layers is");
  expect(kDeepSeekV3, R"({"qk_head_dim": 128})", "qk_head_dim is 128");
  expect(kDeepSeekV3, R"({"softmax_scale": 0.07})", "softmax_scale is 0.07, but");
  expect(kDeepSeekV3, R"({"rope_scaling": {"factor": 0.5}})", "factor is 0.5, must be in 1 .. ");
  expect(kDeepSeekV3, R"({"rope_scaling": {"mscale_all_dim": -1}})", "mscale_all_dim is -1");
  expect(kDeepSeekV3, R"({"rope_parameters": {}})", "both rope_scaling and rope_parameters");
  expect(kDeepSeekV3, R"({"qk_nope_head_dim": 2147483647, "qk_rope_head_dim": 2147483647})",
         "qk_nope_head_dim + qk_rope_head_dim is 4294967294");
  expect(kDeepSeekV3, R"({"qk_nope_head_dim": 0, "qk_rope_head_dim": 0})", "softmax_scale is inf");
  expect(kSmolLm2, R"({"num_attention_heads": 0})", "num_attention_heads is 0");
  expect(kSmolLm2, R"({"num_key_value_heads": 0})", "num_key_value_heads is 0");
  expect(kSmolLm2, R"({"head_dim": -3})", "head_dim is -3");
  TRIBUTARY_EXPECT_ERROR(
      parse(patched(kSmolLm2, R"({"head_dim": 2147483647, "num_key_value_heads": 2147483647})")),
      ErrorCode::kUnsupported, "at most 2048 each");
}

TEST(MlaShapes, OtherAttentionIsRefusedByName) {
  const auto expect = [](std::string_view base, std::string_view patch, std::string_view text) {
    TRIBUTARY_EXPECT_ERROR(parse(patched(base, patch)), ErrorCode::kUnsupported, std::string(text));
  };
  expect(kSmolLm2, R"({"model_type": "gpt2"})", "'\"gpt2\"'; supported: deepseek_v2");
  expect(kSmolLm2, R"({"sliding_window": 4096})", "sliding_window is '4096'");
  expect(kSmolLm2, R"({"attn_logit_softcapping": 50.0})", "attn_logit_softcapping");
  expect(kMiniCpm3, R"({"rope_scaling": {"mscale_all_dim": 1}})", "mscale_all_dim");
  for (const char* patch : {R"({"sliding_window": 128})", R"({"index_topk": 2048})",
                            R"({"linear_attn_config": {"kda_layers": [1]}})",
                            R"({"layer_types": ["full_attention", "linear_attention"]})",
                            R"({"layer_types": 3})", R"({"rope_scaling": {"type": "linear"}})"}) {
    const std::string key = Json::parse(patch).begin().key();
    expect(kDeepSeekV3, patch, key == "rope_scaling" ? "mscale_all_dim is '1.0'" : key + " is ");
  }
  EXPECT_NO_THROW(
      parse(patched(kDeepSeekV3, R"({"layer_types": ["full_attention", "full_attention"]})")));
  // Qwen publishes a window that it does not use.
  EXPECT_NO_THROW(
      parse(patched(kSmolLm2, R"({"sliding_window": 4096, "use_sliding_window": false})")));
}

/// A published config and what a pool without weights needs of it.
struct PublishedShape {
  const char* file;
  MlaShape shape;
};

TEST(MlaShapes, OfPublishedConfigsAreRight) {
  const auto latent = [](int heads, int layers, double scale) {
    return MlaShape{.name = "",
                    .heads = heads,
                    .kv_lora_rank = 512,
                    .qk_rope_head_dim = 64,
                    .layers = layers,
                    .softmax_scale = scale};
  };
  const MlaShape v3 = latent(128, 61, 0.135233779);
  const std::vector<PublishedShape> published = {
      {"kimi-k2.5.json", latent(64, 61, 0.144679626)},
      {"v3-awq.json", v3},
      {"v3-modelopt-nvfp4.json", v3},
      {"v3-infinity.json", v3},
      {"v3-integers-as-floats.json", v3},
      {"v3-shape-keys-alone.json", v3},
      {"v3-mscale-absent.json", v3},
      {"minicpm3-4b.json",
       {.name = "",
        .heads = 40,
        .kv_lora_rank = 256,
        .qk_rope_head_dim = 32,
        .layers = 62,
        .softmax_scale = std::pow(96, -0.5)}},
      {"longcat-flash-yarn.json", latent(32, 28, 0.10923005)},
      {"glm-4.7-flash.json", latent(20, 47, 0.0625)},
      {"youtu-llm-2b.json", latent(16, 32, std::pow(192, -0.5))},
  };
  for (const auto& [file, expected] : published) {
    SCOPED_TRACE(file);
    MlaShape shape = find_mla_shape(test::case_file("models").string() + "/" + file);
    EXPECT_NEAR(shape.softmax_scale, expected.softmax_scale, 1e-7 * expected.softmax_scale);
    shape.softmax_scale = expected.softmax_scale;
    expect_equal(shape, expected);
  }
  // A preset is the model's, the scale too.
  expect_equal(find_mla_shape(test::case_file("models/kimi-k2.5.json").string()),
               find_mla_shape("kimi-k2.5"));
  expect_equal(find_mla_shape(test::case_file("models/glm-4.7-flash.json").string()),
               find_mla_shape("glm-4.7-flash"));
  EXPECT_NE(find_mla_shape("kimi-k2").softmax_scale, find_mla_shape("kimi-k2.5").softmax_scale);
}

TEST(MlaShapes, OfMistral4HaveYarnsScale) {
  // As transformers' Mistral4 writes it; queries are scaled by the engine (llama_4_scaling_beta).
  const MlaShape shape = parse(R"({
      "model_type": "mistral3", "text_config": {
        "model_type": "mistral4", "num_attention_heads": 32, "num_hidden_layers": 36,
        "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "qk_head_dim": 128,
        "rope_parameters": {"type": "yarn", "rope_type": "yarn", "factor": 128.0, "mscale": 1.0,
                            "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
                            "partial_rotary_factor": 0.5}}})");
  EXPECT_EQ(shape.kv_lora_rank, 256);
  EXPECT_EQ(shape.layers, 36);
  const double m = 0.1 * std::log(128.0) + 1;
  EXPECT_NEAR(shape.softmax_scale, std::pow(128, -0.5) * m * m, 1e-15);
}

TEST(MlaShapes, OfOtherFamiliesAreRefusedForTheirModelType) {
  for (const auto& [file, type] : {std::pair{"models/v4-like.json", "deepseek_v4"},
                                   std::pair{"models/glm-5.3-flash.json", "glm5_next_text"}}) {
    const std::string path = test::case_file(file).string();
    TRIBUTARY_EXPECT_ERROR(find_mla_shape(path), ErrorCode::kUnsupported,
                           fmt::format("model_type is '\"{}\"'; supported: deepseek_v2", type));
  }
}

TEST(FindMlaShape, TakesAPathWhereNoPresetHasTheName) {
  test::TemporaryFolder folder;
  const auto path = folder.write("mine.json", kFields);
  const MlaShape shape = find_mla_shape(path.string());
  EXPECT_EQ(shape.heads, 9);
  EXPECT_FALSE(is_mla_preset(path.string()));
  TRIBUTARY_EXPECT_ERROR(find_mla_shape("deepseek-v9"), ErrorCode::kNotFound,
                         "'deepseek-v9', and no file of that name; there are: deepseek-v3, "
                         "deepseek-v2, deepseek-v2-lite, kimi-k2, kimi-k2.5, glm-4.7-flash, "
                         "deepseek-v3.2, kimi-k3");
  TRIBUTARY_EXPECT_ERROR(find_mla_shape(folder.path().string()), ErrorCode::kIo,
                         folder.path().string());
}

}  // namespace
}  // namespace tributary
