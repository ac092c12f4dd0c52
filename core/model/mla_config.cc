// Reads the shape of a pool without weights: from a file of its own fields, or from a config.json.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/model/config_keys.h"
#include "core/model/mla_shape.h"
#include "core/model/model_shape.h"

namespace tributary {
namespace {

using Json = nlohmann::json;

MlaShape parse_fields(const ConfigKeys& file) {
  constexpr std::array kKnown{"name",   "heads",         "kv_lora_rank", "qk_rope_head_dim",
                              "layers", "softmax_scale", "topk"};
  for (const auto& [key, value] : file.object().items()) {
    if (std::ranges::find(kKnown, key) == kKnown.end()) {
      fail(ErrorCode::kMalformedInput,
           "{}: {} is no key of a shape, which has heads, kv_lora_rank, qk_rope_head_dim, layers, "
           "softmax_scale, topk and name; a config.json has a model_type",
           file.where(), quote(key));
    }
  }
  return {.name = file.find("name") != nullptr ? file.text("name") : file.where(),
          .heads = file.integer("heads"),
          .kv_lora_rank = file.integer("kv_lora_rank"),
          .qk_rope_head_dim = file.integer("qk_rope_head_dim"),
          .layers = file.integer("layers"),
          .softmax_scale = file.number("softmax_scale"),
          .topk = file.integer("topk", 0)};
}

/// Only the DeepSeek family's YaRN scales the softmax, by mscale_all_dim.
void check_scaling(const ConfigKeys& config) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* value = config.find(key);
    if (value == nullptr) continue;
    const ConfigKeys scaling(*value, config.where() + ": " + key);
    if (scaling.find("mscale_all_dim") != nullptr) {
      scaling.unsupported("mscale_all_dim", "absent, for this model_type");
    }
  }
}

void check_attention(const ConfigKeys& config) {
  if (config.find("attn_logit_softcapping") != nullptr) {
    config.unsupported("attn_logit_softcapping", "null or absent");
  }
  if (config.boolean("use_sliding_window", true) && config.find("sliding_window") != nullptr) {
    config.unsupported("sliding_window", "null, absent, or with use_sliding_window false");
  }
}

/// The layers of a hybrid model that attend; the others keep another kind of state.
int attending_layers(const ConfigKeys& config) {
  const ConfigKeys linear(config.require("linear_attn_config"),
                          config.where() + ": linear_attn_config");
  const Json& layers = linear.require("full_attn_layers");
  if (!layers.is_array()) {
    fail(ErrorCode::kMalformedInput, "{}: full_attn_layers is {}, must be a list", linear.where(),
         shown(layers));
  }
  return static_cast<int>(layers.size());
}

int at_least(const ConfigKeys& config, const char* key, int low) {
  const int value = config.integer(key);
  if (value < low) {
    fail(ErrorCode::kMalformedInput, "{}: {} is {}, must be at least {}", config.where(), key,
         value, low);
  }
  return value;
}

MlaShape parse_mla(const ConfigKeys& config, const std::string& type) {
  check_scaling(config);
  // A layer of LongCat-Flash attends twice.
  const int layers = type == "longcat_flash" ? 2 * std::min(config.integer("num_layers"), 1 << 20)
                     : type == "kimi_linear" ? attending_layers(config)
                                             : config.integer("num_hidden_layers");
  const double qk_head_dim =
      double{1} * at_least(config, "qk_nope_head_dim", 0) + config.integer("qk_rope_head_dim");
  return {.name = type,
          .heads = config.integer("num_attention_heads"),
          .kv_lora_rank = config.integer("kv_lora_rank"),
          .qk_rope_head_dim = config.integer("qk_rope_head_dim"),
          .layers = layers,
          .softmax_scale = std::pow(qk_head_dim, -0.5),
          .topk = type == "glm_moe_dsa" ? at_least(config, "index_topk", 1) : 0};
}

MlaShape parse_grouped(const ConfigKeys& config, const std::string& type) {
  const int heads = at_least(config, "num_attention_heads", 1);
  const std::int64_t kv_heads = config.find("num_key_value_heads") != nullptr
                                    ? at_least(config, "num_key_value_heads", 1)
                                    : heads;
  const std::int64_t head_dim = config.find("head_dim") != nullptr
                                    ? at_least(config, "head_dim", 1)
                                    : at_least(config, "hidden_size", heads) / heads;
  const std::int64_t width = kv_heads * head_dim;
  if (width > kMaxGroupedWidth / 2) {
    fail(ErrorCode::kUnsupported,
         "{}: {} KV heads of {} have {} values of V and as many of K; at most {} each: every query "
         "head multiplies the whole row, {} times the arithmetic of its own",
         config.where(), kv_heads, head_dim, width, kMaxGroupedWidth / 2, kv_heads);
  }
  return {.name = type,
          .heads = heads,
          .kv_lora_rank = static_cast<int>(width),
          .qk_rope_head_dim = static_cast<int>(width),
          .layers = config.integer("num_hidden_layers"),
          .softmax_scale = std::pow(static_cast<double>(head_dim), -0.5),
          .topk = 0};
}

MlaShape parse_config(const ConfigKeys& config) {
  const std::string& type = config.text("model_type");
  const auto is_one_of = [&](std::initializer_list<const char*> types) {
    return std::ranges::find(types, type) != types.end();
  };
  if (is_one_of({"deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2"})) {
    Json own = config.object();
    own.erase("rope_interleave");  // how the engine stores what it has rotated
    const bool selects = type == "deepseek_v32";
    if (selects) {  // DeepSeek-V3's attention; the indexer is the engine's
      own["model_type"] = "deepseek_v3";
      own.erase("index_topk");
    }
    MlaShape shape = mla_shape(parse_model_config(own.dump(), config.where()));
    if (selects) {
      shape.name = type;
      shape.topk = at_least(config, "index_topk", 1);
    }
    return shape;
  }
  check_attention(config);
  if (is_one_of({"glm_moe_dsa", "kimi_linear", "longcat_flash", "minicpm3"})) {
    return parse_mla(config, type);
  }
  if (is_one_of({"llama", "mistral", "qwen2", "qwen3"})) return parse_grouped(config, type);
  config.unsupported(
      "model_type",
      "deepseek_v2, deepseek_v3, deepseek_v32, kimi_k2, glm_moe_dsa, kimi_linear, "
      "longcat_flash, minicpm3, llama, mistral, qwen2, qwen3; a file of heads, kv_lora_rank, "
      "qk_rope_head_dim, layers and softmax_scale serves any other");
}

}  // namespace

MlaShape parse_mla_shape(std::string_view json, std::string_view source) {
  const Json document = parse_config_text(json, source);
  const ConfigKeys file(document, std::string(source));
  const bool nested = file.find("text_config") != nullptr;  // a model that sees has its text's here
  const ConfigKeys keys(nested ? file.require("text_config") : document,
                        nested ? file.where() + ": text_config" : file.where());
  MlaShape shape = keys.find("model_type") != nullptr ? parse_config(keys) : parse_fields(keys);
  try {
    validate(shape);
  } catch (const Error& error) {
    fail(ErrorCode::kMalformedInput, "{}: {}", source, error.what());
  }
  return shape;
}

}  // namespace tributary
