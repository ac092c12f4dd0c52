// The config.json reader: published files are read, absurd or unimplemented ones are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/model/mla_shape.h"
#include "core/model/model_shape.h"
#include "core/model/safetensors.h"
#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

using Json = nlohmann::json;

/// The attention keys of DeepSeek-V3's config.json, and some of the others.
Json v3_config() {
  return Json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
    "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
    "model_type": "deepseek_v3", "n_routed_experts": 256, "num_attention_heads": 128,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                            "weight_block_size": [128, 128]},
    "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                     "type": "yarn"},
    "rope_theta": 10000, "tie_word_embeddings": false, "v_head_dim": 128, "vocab_size": 129280})");
}

ModelShape parse(const Json& config) {
  return parse_model_config(config.dump(), "config.json");
}

/// v3_config() with the keys of `patch` set, within objects too.
Json patched(std::string_view patch) {
  Json config = v3_config();
  const Json changes = Json::parse(patch);
  for (const auto& [key, value] : changes.items()) {
    if (value.is_object() && config.contains(key) && config[key].is_object()) {
      config[key].update(value);
    } else {
      config[key] = value;
    }
  }
  return config;
}

void expect_equal(const ModelShape& a, const ModelShape& b) {
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.num_hidden_layers, b.num_hidden_layers);
  EXPECT_EQ(a.num_attention_heads, b.num_attention_heads);
  EXPECT_EQ(a.q_lora_rank, b.q_lora_rank);
  EXPECT_EQ(a.kv_lora_rank, b.kv_lora_rank);
  EXPECT_EQ(a.qk_nope_head_dim, b.qk_nope_head_dim);
  EXPECT_EQ(a.qk_rope_head_dim, b.qk_rope_head_dim);
  EXPECT_EQ(a.v_head_dim, b.v_head_dim);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  EXPECT_EQ(a.latent_norm_eps, b.latent_norm_eps);
  EXPECT_EQ(a.rope.theta, b.rope.theta);
  ASSERT_EQ(a.rope.yarn.has_value(), b.rope.yarn.has_value());
  if (!a.rope.yarn) return;
  EXPECT_EQ(a.rope.yarn->factor, b.rope.yarn->factor);
  EXPECT_EQ(a.rope.yarn->beta_fast, b.rope.yarn->beta_fast);
  EXPECT_EQ(a.rope.yarn->beta_slow, b.rope.yarn->beta_slow);
  EXPECT_EQ(a.rope.yarn->mscale, b.rope.yarn->mscale);
  EXPECT_EQ(a.rope.yarn->mscale_all_dim, b.rope.yarn->mscale_all_dim);
  EXPECT_EQ(a.rope.yarn->original_max_position_embeddings,
            b.rope.yarn->original_max_position_embeddings);
}

TEST(ModelConfig, ReadsWhatIsPublished) {
  const ModelShape v3 = parse(v3_config());
  EXPECT_EQ(v3.name, "deepseek_v3");
  expect_equal(v3, find_model_shape("deepseek-v3"));

  const ModelShape kimi = parse(patched(R"({
      "model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64,
      "max_position_embeddings": 131072, "rope_theta": 50000.0,
      "rope_scaling": {"beta_fast": 1.0, "factor": 32.0}})"));
  EXPECT_EQ(kimi.name, "kimi_k2");
  expect_equal(kimi, find_model_shape("kimi-k2"));

  Json lite = patched(R"({
      "model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27,
      "num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": null,
      "rope_scaling": {"mscale": 0.707, "mscale_all_dim": 0.707}})");
  lite.erase("quantization_config");
  expect_equal(parse(lite), find_model_shape("deepseek-v2-lite"));
  for (const Json& none : {Json(0), Json()}) {
    lite["q_lora_rank"] = none;
    EXPECT_EQ(parse(lite).q_lora_rank, 0);
  }
  lite.erase("q_lora_rank");
  EXPECT_EQ(parse(lite).q_lora_rank, 0);
}

TEST(ModelConfig, ReadsBothStylesOfRope) {
  Json config = v3_config();
  const Json scaling = config["rope_scaling"];
  config["rope_scaling"] = nullptr;
  EXPECT_FALSE(parse(config).rope.yarn.has_value());
  config.erase("rope_scaling");
  EXPECT_FALSE(parse(config).rope.yarn.has_value());

  // transformers 5: everything in rope_parameters.
  config.erase("rope_theta");
  config["rope_parameters"] = scaling;
  config["rope_parameters"]["rope_theta"] = 10000.0;
  config["rope_parameters"]["rope_type"] = "yarn";
  expect_equal(parse(config), find_model_shape("deepseek-v3"));
  config["rope_parameters"].erase("type");
  expect_equal(parse(config), find_model_shape("deepseek-v3"));
  config["rope_parameters"] = Json::parse(R"({"rope_type": "default", "rope_theta": 20000})");
  EXPECT_FALSE(parse(config).rope.yarn.has_value());
  EXPECT_EQ(parse(config).rope.theta, 20000);
}

void expect_golden(const std::filesystem::path& path, double softmax_scale) {
  const SafetensorsFile file(path);
  const auto& metadata = file.header().metadata;
  const ModelShape shape = parse_model_config(metadata.at("config"), path.string());
  EXPECT_EQ(shape.num_hidden_layers, 1);
  // A few roundings apart from another program's evaluation of the same formula.
  EXPECT_NEAR(shape.softmax_scale(), softmax_scale, 8 * 0x1p-53 * softmax_scale);
  EXPECT_NEAR(shape.softmax_scale(), std::stod(metadata.at("softmax_scale")),
              8 * 0x1p-53 * softmax_scale);
}

TEST(ModelConfig, ReadsTheConfigOfTheTinyGoldenFile) {
  expect_golden(test::tiny_safetensors(), 0.14433756729740643);
}

TEST(ModelConfig, ReadsTheConfigOfTheOtherGoldenFiles) {
  for (const char* name : {"golden/lite.safetensors", "golden/v3-slim.safetensors"}) {
    const auto path = test::shared_file(name);
    if (!std::filesystem::exists(path)) GTEST_SKIP() << "absent: " << path;
    expect_golden(path, 0.1352337788608801);
  }
}

TEST(ModelConfig, RefusesAMissingKeyByName) {
  for (const char* key :
       {"model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "kv_lora_rank",
        "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "max_position_embeddings"}) {
    SCOPED_TRACE(key);
    const std::string message = "config.json: " + std::string(key) + " is missing";
    Json config = v3_config();
    config[key] = nullptr;
    TRIBUTARY_EXPECT_ERROR(parse(config), ErrorCode::kMalformedInput, message);
    config.erase(key);
    TRIBUTARY_EXPECT_ERROR(parse(config), ErrorCode::kMalformedInput, message);
  }
  Json config = v3_config();
  config.erase("rope_theta");
  TRIBUTARY_EXPECT_ERROR(parse(config), ErrorCode::kMalformedInput, "rope_theta is missing");
  for (const char* key : {"factor", "original_max_position_embeddings"}) {
    config = v3_config();
    config["rope_scaling"].erase(key);
    TRIBUTARY_EXPECT_ERROR(parse(config), ErrorCode::kMalformedInput,
                           "config.json: rope_scaling: " + std::string(key) + " is missing");
  }
}

struct Refusal {
  const char* patch;
  ErrorCode code;
  const char* message;
};

TEST(ModelConfig, RefusesAbsurdValues) {
  constexpr ErrorCode kBad = ErrorCode::kMalformedInput;
  const std::vector<Refusal> refusals = {
      {R"({"hidden_size": 0})", kBad, "config.json: hidden_size is 0, must be in 1 .. 1048576"},
      {R"({"hidden_size": -5})", kBad, "hidden_size is -5"},
      {R"({"hidden_size": 4294967296})", kBad, "hidden_size is '4294967296', must be an integer"},
      {R"({"hidden_size": 18446744073709551616})", kBad, "hidden_size is '1.8"},
      {R"({"hidden_size": 18446744073709551615})", kBad, "hidden_size is '1844"},
      {R"({"hidden_size": -9223372036854775808})", kBad, "hidden_size is '-922"},
      {R"({"hidden_size": 7168.5})", kBad, "hidden_size is '7168.5', must be an integer"},
      {R"({"hidden_size": "7168"})", kBad, "hidden_size is '\"7168\"', must be an integer"},
      {R"({"hidden_size": [7168]})", kBad, "hidden_size is '[7168]'"},
      {R"({"num_hidden_layers": 1000000})", kBad, "num_hidden_layers is 1000000"},
      {R"({"qk_rope_head_dim": 63})", kBad, "qk_rope_head_dim is 63, must be even"},
      {R"({"q_lora_rank": -1})", kBad, "q_lora_rank is -1"},
      {R"({"rope_theta": 0})", kBad, "rope_theta is 0"},
      {R"({"rope_theta": 1e300})", kBad, "rope_theta is 1e+300"},
      {R"({"num_key_value_heads": 8})", kBad, "num_key_value_heads is 8, must equal"},
      {R"({"qk_head_dim": 128})", kBad, "qk_head_dim is 128"},
      {R"({"softmax_scale": 0.0721687836})", kBad, "softmax_scale is 0.0721687836, but"},
      {R"({"softmax_scale": "0.1"})", kBad, "softmax_scale is '\"0.1\"'"},
      {R"({"model_type": 3})", kBad, "model_type is '3', must be a string"},
      {R"({"attention_bias": 1})", kBad, "attention_bias is '1', must be true or false"},
      {R"({"rope_scaling": []})", kBad, "rope_scaling is '[]', must be a JSON object"},
      {R"({"rope_scaling": {"type": 1}})", kBad, "rope_scaling: type is '1', must be a string"},
      {R"({"rope_scaling": {"type": null}})", kBad, "rope_scaling: 'beta_fast' without a scaling"},
      {R"({"rope_scaling": {"rope_type": "linear"}})", kBad, "rope_type '\"linear\"'"},
      {R"({"rope_scaling": {"factor": 0.5}})", kBad, "factor is 0.5, must be in 1 .. "},
      {R"({"rope_scaling": {"factor": "40"}})", kBad, "factor is '\"40\"', must be a number"},
      {R"({"rope_scaling": {"beta_fast": 0.5}})", kBad, "beta_fast is 0.5, must be in 1 .."},
      {R"({"rope_scaling": {"beta_slow": -1}})", kBad, "beta_slow is -1"},
      {R"({"rope_scaling": {"original_max_position_embeddings": 0}})", kBad, "embeddings is 0"},
      {R"({"rope_scaling": {"rope_theta": 20000}})", kBad,
       "rope_scaling: rope_theta is 10000, but 20000 in it"},
      {R"({"rope_parameters": {"rope_type": "default"}})", kBad, "both rope_scaling and"},
      {R"({"quantization_config": "fp8"})", kBad,
       "quantization_config is '\"fp8\"', must be a JSON"},
      {R"({"quantization_config": {"quant_method": null}})", kBad, "quant_method is missing"},
      {R"({"quantization_config": {"weight_block_size": null}})", kBad,
       "weight_block_size is missing"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.patch);
    TRIBUTARY_EXPECT_ERROR(parse(patched(refusal.patch)), refusal.code, refusal.message);
  }
}

TEST(ModelConfig, RefusesWhatIsNotImplementedByName) {
  constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
  const std::vector<Refusal> refusals = {
      {R"({"model_type": "llama"})", kUnsupported,
       "model_type is '\"llama\"'; supported: deepseek_v2, deepseek_v3, kimi_k2, "
       "glm4_moe_lite, youtu"},
      {R"({"model_type": "deepseek_v32"})", kUnsupported, "model_type is"},
      {R"({"attention_bias": true})", kUnsupported, "attention_bias is 'true'; supported: false"},
      {R"({"rope_interleave": false})", kUnsupported, "rope_interleave is 'false'"},
      {R"({"use_mla": false})", kUnsupported, "use_mla is 'false'"},
      {R"({"mla_use_nope": true})", kUnsupported, "mla_use_nope is 'true'"},
      {R"({"qk_layernorm": true})", kUnsupported, "qk_layernorm is 'true'"},
      {R"({"sliding_window": 4096})", kUnsupported, "sliding_window is '4096'"},
      {R"({"index_topk": 2048})", kUnsupported, "index_topk is '2048'"},
      {R"({"partial_rotary_factor": 0.5})", kUnsupported, "partial_rotary_factor is '0.5'"},
      {R"({"layer_types": ["full_attention", "sliding_attention"]})", kUnsupported,
       "layer_types is"},
      {R"({"rope_scaling": {"type": "linear"}})", kUnsupported, "type is '\"linear\"'; supported"},
      {R"({"rope_scaling": {"type": "llama3"}})", kUnsupported, "type is '\"llama3\"'"},
      {R"({"rope_scaling": {"attention_factor": 1.2}})", kUnsupported, "'attention_factor' is not"},
      {R"({"rope_scaling": {"mscale_all_dim": 0}})", kUnsupported,
       "mscale is 1 and mscale_all_dim"},
      {R"({"quantization_config": {"quant_method": "gptq"}})", kUnsupported, "quant_method is"},
      {R"({"quantization_config": {"fmt": "e5m2"}})", kUnsupported, "fmt is '\"e5m2\"'"},
      {R"({"quantization_config": {"weight_block_size": [1, 128]}})", kUnsupported,
       "weight_block_size is '[1,128]'; supported: [128, 128]"},
  };
  for (const Refusal& refusal : refusals) {
    SCOPED_TRACE(refusal.patch);
    TRIBUTARY_EXPECT_ERROR(parse(patched(refusal.patch)), refusal.code, refusal.message);
  }
}

TEST(ModelConfig, RefusesMscaleThatReadersTakeDifferently) {
  constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
  for (const char* text :
       {"mscale_all_dim is 1 and mscale is absent", "DeepSeek's code and vLLM read mscale as 1",
        "transformers multiplies cos and sin by 1.3689"}) {
    TRIBUTARY_EXPECT_ERROR(read_model_config(test::case_file("models/v3-mscale-absent.json")),
                           kUnsupported, text);
  }
  Json config = v3_config();
  Json& scaling = config["rope_scaling"];
  scaling.erase("mscale");
  scaling["factor"] = 1;  // ln 1 = 0: all agree
  EXPECT_NO_THROW((void)parse(config));
  // Absent mscale means 1, absent mscale_all_dim 0: that pair scales the rotation.
  scaling["factor"] = 40;
  scaling.erase("mscale_all_dim");
  TRIBUTARY_EXPECT_ERROR(parse(config), kUnsupported, "mscale_all_dim 0");
}

TEST(ModelConfig, LeavesTheLatentNormsAlone) {
  // rms_norm_eps is of the norms around the attention.
  for (const char* patch : {R"({"rms_norm_eps": 1e-5})", R"({"rms_norm_eps": null})"}) {
    EXPECT_EQ(parse(patched(patch)).latent_norm_eps, 1e-6) << patch;
  }
}

TEST(ModelConfig, RefusesKeysOfOtherAttentionByNameAndTakesTheirNeutralValues) {
  std::ifstream file(test::case_file("keys.json"));
  const Json cases = Json::parse(file);
  const Json& base = cases.at("base");
  EXPECT_NO_THROW((void)parse(base));
  const auto expect_refused = [&](const std::string& key, const Json& value) {
    SCOPED_TRACE(key);
    Json config = base;
    config[key] = value;
    TRIBUTARY_EXPECT_ERROR(parse(config), ErrorCode::kUnsupported, "config.json: " + key + " is '");
    for (const Json& neutral : {Json(), Json(false), Json::array(), Json::object()}) {
      config[key] = neutral;
      EXPECT_NO_THROW((void)parse(config)) << neutral;
    }
  };
  for (const auto& [key, value] : cases.at("each_refused_or_known").items()) {
    expect_refused(key, value);
  }
  // Keys of other MLA models of transformers, vLLM and their makers, and some that nobody has yet.
  for (const char* key : {"qk_norm",
                          "use_qk_rmsnorm",
                          "q_norm",
                          "attention_sink",
                          "use_attention_sinks",
                          "add_swa_attention_sink_bias",
                          "attention_value_scale",
                          "attention_chunk_size",
                          "attn_temperature_tuning",
                          "no_rope_layers",
                          "no_rope_layer_interval",
                          "rotary_dim",
                          "kv_source_layers",
                          "num_kv_shared_layers",
                          "index_n_heads",
                          "index_topk",
                          "indexer_types",
                          "gated_norm_rank",
                          "learnable_sink_init",
                          "kda_lower_bound",
                          "linear_num_heads",
                          "short_conv_kernel_size",
                          "layer_group_size",
                          "layers_block_type",
                          "use_bias",
                          "qkv_bias",
                          "clip_qkv",
                          "o_lora_rank",
                          "compress_ratios",
                          "mla_scale_kv_lora",
                          "head_wise_gate",
                          "attention_multiplier",
                          "query_pre_attn_scalar",
                          "position_embedding_type",
                          "useQkNorm",
                          "hybrid_layer_pattern",
                          "window_size",
                          "partial_rotary"}) {
    expect_refused(key, 3);
  }
  // transformers lists the kinds of layers also where they are alike.
  Json config = base;
  config["layer_types"] = {"full_attention", "full_attention"};
  config["partial_rotary_factor"] = 1.0;
  config["sliding_window"] = 4096;
  config["use_sliding_window"] = false;
  EXPECT_NO_THROW((void)parse(config));
}

TEST(ModelConfig, TakesKeysOfOtherPartsOfAModel) {
  Json config = v3_config();
  const Json others = Json::parse(R"({
    "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc", "topk_group": 4,
    "n_group": 8, "norm_topk_prob": true, "routed_scaling_factor": 2.5, "router_bias": true,
    "moe_gate_scale": 2, "mlp_bias": true, "mlp_layer_types": ["dense", "sparse"],
    "num_nextn_predict_layers": 1, "aux_loss_alpha": 0.001, "seq_aux": true, "ep_size": 1,
    "attention_dropout": 0.1, "attn_implementation": "sdpa", "use_flash_attention_2": true,
    "head_dim": 64, "qk_head_dim": 192, "max_window_layers": 28, "pruned_heads": {},
    "output_attentions": true, "temperature": 0.6, "top_k": 50, "image_token_index": 7,
    "embedding_initializer_range": 0.1, "final_logit_softcapping": 30, "hc_mult": 4,
    "add_cross_attention": false, "cross_attention_hidden_size": null, "swiglu_limit": 7.0,
    "layer_norm_eps": 1e-6, "rope_interleave": true, "id2label": {"0": "LABEL_0"},
    "chunk_size_feed_forward": 0, "use_cache": true, "auto_map": {"AutoConfig": "attention.py"}})");
  for (const auto& [key, value] : others.items()) {
    Json one = config;
    one[key] = value;
    EXPECT_NO_THROW((void)parse(one)) << key;
  }
  config.update(others);
  expect_equal(parse(config), find_model_shape("deepseek-v3"));
}

TEST(ModelConfig, ReadsOtherFamiliesWhoseAttentionIsDeepSeeks) {
  const auto read = [](std::string_view file, std::string_view patch) {
    std::ifstream stream(test::case_file(file));
    Json config = Json::parse(stream);
    config.update(Json::parse(patch));
    return parse(config);
  };
  // The keys that transformers fills in.
  const ModelShape glm = read("models/glm-4.7-flash.json",
                              R"({"rope_theta": 1000000, "partial_rotary_factor": 1.0,
                                  "rope_scaling": null, "layer_types": null})");
  expect_equal(glm, find_model_shape("glm-4.7-flash"));
  const ModelShape youtu =
      read("models/youtu-llm-2b.json", R"({"max_position_embeddings": 131072})");
  EXPECT_EQ(youtu.name, "youtu");
  EXPECT_EQ(youtu.rope.theta, 1'600'000);
  EXPECT_FALSE(youtu.rope.yarn.has_value());
  EXPECT_EQ(youtu.q_lora_rank, 1536);
  // What a model that sees says of its text.
  expect_equal(read_model_config(test::case_file("models/kimi-k2.5.json")),
               find_model_shape("kimi-k2.5"));
  // Others scale their queries or latents, or rotate in another way.
  for (const char* file : {"longcat-flash-yarn", "minicpm3-4b", "v4-like", "glm-5.3-flash"}) {
    TRIBUTARY_EXPECT_ERROR(
        read_model_config(test::case_file("models/" + std::string(file) + ".json")),
        ErrorCode::kUnsupported, "model_type is '");
  }
}

TEST(ModelConfig, TakesAQuantisationThatLeavesTheAttentionAlone) {
  const auto with = [](const char* key, const Json& list, std::string_view method) {
    Json config = v3_config();
    config["num_hidden_layers"] = 2;
    config["quantization_config"] = {{"quant_method", method}, {key, list}};
    return config;
  };
  Json names = Json::array();
  for (const char* layer : {"0", "1"}) {
    for (const char* module :
         {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}) {
      names.push_back("model.layers." + std::string(layer) + ".self_attn." + module);
    }
  }
  Json nested = names;
  for (Json& name : nested) name = "language_model." + name.get<std::string>();
  for (const Json& config :
       {with("ignore", names, "compressed-tensors"), with("ignore", nested, "compressed-tensors"),
        with("ignore", {"lm_head", "re:.*self_attn.*"}, "compressed-tensors"),
        with("ignore", {"re:^model\\.layers\\.\\d+\\.self_attn\\..*$"}, "compressed-tensors"),
        with("ignore", {"model.layers.0.self_attn", "model.layers.1.self_attn"}, "modelopt"),
        with("exclude_modules", {"model.layers.0.self_attn*", "*layers.1.self_attn*"}, "modelopt"),
        with("modules_to_not_convert", {"self_attn"}, "awq")}) {
    EXPECT_NO_THROW((void)parse(config)) << config["quantization_config"];
  }
  names.erase(9);
  for (const Json& config :
       {with("ignore", names, "compressed-tensors"),
        with("ignore", {"lm_head", "re:.*mlp.*"}, "compressed-tensors"),
        with("ignore", {"re:.*self_attn.*(q|k)_proj"}, "compressed-tensors"),
        with("ignore", {"self_attn"}, "modelopt"), with("ignore", "self_attn", "modelopt"),
        with("exclude_modules", {"model.layers.0.self_attn*"}, "modelopt"),
        with("exclude_modules", {"*self_attn"}, "modelopt"),
        with("modules_to_not_convert", {"mlp.gate"}, "awq")}) {
    TRIBUTARY_EXPECT_ERROR(parse(config), ErrorCode::kUnsupported, "quant_method is '");
  }
}

TEST(ModelConfig, RefusesPublishedQuantisationsByName) {
  for (const auto& [file, name] :
       {std::pair{"models/v3-awq.json", "quant_method is '\"awq\"'"},
        std::pair{"models/v3-modelopt-nvfp4.json", "quant_method is '\"modelopt\"'"}}) {
    const auto path = test::case_file(file);
    TRIBUTARY_EXPECT_ERROR(read_model_config(path), ErrorCode::kUnsupported, name);
  }
  // ModelOpt's own file stands beside a config that does not mention it.
  test::TemporaryFolder folder;
  Json plain = v3_config();
  plain.erase("quantization_config");
  const auto path = folder.write("config.json", plain.dump());
  const auto beside = [&](std::string_view text) { folder.write("hf_quant_config.json", text); };
  beside(R"({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": null}})");
  expect_equal(read_model_config(path), find_model_shape("deepseek-v3"));
  beside(R"({"producer": {"name": "modelopt"},
             "quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}})");
  TRIBUTARY_EXPECT_ERROR(read_model_config(path), ErrorCode::kUnsupported,
                         "hf_quant_config.json: quantization: quant_algo is '\"NVFP4\"'");
  TRIBUTARY_EXPECT_ERROR(find_model_shape(path.string()), ErrorCode::kUnsupported, "NVFP4");
  beside(R"({"quantization": {"quant_algo": "NVFP4", "exclude_modules": ["*self_attn*"]}})");
  expect_equal(read_model_config(path), find_model_shape("deepseek-v3"));
  beside("{}");
  TRIBUTARY_EXPECT_ERROR(read_model_config(path), ErrorCode::kMalformedInput,
                         "quantization is missing");
}

TEST(ModelConfig, TakesFilesAsTheyCome) {
  const ModelShape v3 = find_model_shape("deepseek-v3");
  for (const char* file : {"models/v3-infinity.json", "models/v3-integers-as-floats.json"}) {
    expect_equal(read_model_config(test::case_file(file)), v3);
  }
  // A quantised model's list of all that is not quantised.
  Json config = v3_config();
  Json& ignored = config["quantization_config"]["ignored_layers"] = Json::array();
  for (int i = 0; i < 80'000; ++i) {
    ignored.push_back("model.layers.60.mlp.experts." + std::to_string(i) + ".down_proj");
  }
  EXPECT_GT(config.dump().size(), 3'000'000U);
  expect_equal(parse(config), v3);

  const auto with = [](std::string_view extra) {
    std::string text = v3_config().dump();
    text.insert(1, extra);
    return text;
  };
  for (const char* extra :
       {R"("a": Infinity,)", R"("a": -Infinity,)", R"("a": [NaN, {"b":Infinity}],)",
        R"("a": "Infinity \" NaN",)", R"("a": 1.0,)"}) {
    expect_equal(parse_model_config(with(extra), "f"), v3);
  }
  // A key of ours that has one is refused by name.
  std::string text = v3_config().dump();
  const std::string_view theta = "\"rope_theta\":10000";
  text.replace(text.find(theta), theta.size(), "\"rope_theta\":Infinity");
  TRIBUTARY_EXPECT_ERROR(parse_model_config(text, "f"), ErrorCode::kMalformedInput,
                         "rope_theta is '\"Infinity\"', must be a number");
  for (const char* extra : {R"("a": Infinit,)", R"("a": aNaN,)", R"("a": NaNa,)"}) {
    EXPECT_THROW((void)parse_model_config(with(extra), "f"), Error) << extra;
  }
}

TEST(ModelConfig, CallsOtherFilesWhatTheyAre) {
  TRIBUTARY_EXPECT_ERROR(read_model_config(test::case_file("models/lfs.safetensors")),
                         ErrorCode::kMalformedInput, "lfs.safetensors: is a Git LFS pointer");
  TRIBUTARY_EXPECT_ERROR(read_model_config(test::case_file("models/page.safetensors")),
                         ErrorCode::kMalformedInput, "page.safetensors: is an HTML page");
  TRIBUTARY_EXPECT_ERROR(parse_model_config("\n  <HTML><body>", "f"), ErrorCode::kMalformedInput,
                         "f: is an HTML page");
}

TEST(ModelConfig, RefusesWhatIsNoConfigAtAll) {
  constexpr ErrorCode kBad = ErrorCode::kMalformedInput;
  TRIBUTARY_EXPECT_ERROR(parse_model_config("", "f"), kBad, "f: not valid JSON");
  TRIBUTARY_EXPECT_ERROR(parse_model_config("[]", "f"), kBad, "f is '[]', must be a JSON object");
  TRIBUTARY_EXPECT_ERROR(parse_model_config(R"({"rms_norm_eps": 1e999})", "f"), kBad,
                         "f: not valid JSON");
  TRIBUTARY_EXPECT_ERROR(parse_model_config(R"({"a": 1, "a": 1})", "f"), kBad, "'a' occurs twice");
  TRIBUTARY_EXPECT_ERROR(parse_model_config(std::string((8 << 20) + 1, ' '), "f"), kBad,
                         "8388609 bytes, a model config has at most 8388608");
  // Every prefix of a good file.
  const std::string text = v3_config().dump();
  for (std::size_t length = 0; length < text.size(); ++length) {
    EXPECT_THROW((void)parse_model_config(text.substr(0, length), "f"), Error) << length;
  }
}

TEST(ModelConfig, ReadsFiles) {
  test::TemporaryFolder folder;
  const auto path = folder.write("config.json", v3_config().dump());
  expect_equal(read_model_config(path), find_model_shape("deepseek-v3"));
  TRIBUTARY_EXPECT_ERROR(read_model_config(folder.path() / "absent"), ErrorCode::kIo,
                         "cannot be opened");
  TRIBUTARY_EXPECT_ERROR(read_model_config(folder.path()), ErrorCode::kIo,
                         "is a directory; the file is its config.json");
  TRIBUTARY_EXPECT_ERROR(read_model_config(folder.path().parent_path()), ErrorCode::kIo,
                         "is a directory");
  const auto large = folder.write("large.json", std::string((8 << 20) + 1, ' '));
  TRIBUTARY_EXPECT_ERROR(read_model_config(large), ErrorCode::kMalformedInput, "at most 8388608");
}

}  // namespace
}  // namespace tributary
