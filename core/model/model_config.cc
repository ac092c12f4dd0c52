// Reads a model's dimensions from a Hugging Face config.json. Keys that would change the attention
// and are not implemented are refused by name; keys about other parts of the model are ignored.
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/model/attention_keys.h"
#include "core/model/config_keys.h"
#include "core/model/model_family.h"
#include "core/model/model_shape.h"
#include "core/model/quantization_keys.h"
#include "core/model/scaling_keys.h"

namespace tributary {
namespace {

using Json = nlohmann::json;

/// `mscale_all_dim` without `mscale` has two readers, whose rotation differs.
void check_mscale(const ConfigKeys& scaling) {
  const double all_dim = scaling.number("mscale_all_dim", 0);
  const double factor = scaling.number("factor");
  if (scaling.find("mscale") != nullptr || all_dim == 0 || factor <= 1) return;
  fail(ErrorCode::kUnsupported,
       "{}: mscale_all_dim is {} and mscale is absent: DeepSeek's code and vLLM read mscale as 1, "
       "transformers multiplies cos and sin by {:.4f}; give mscale",
       scaling.where(), all_dim, 0.1 * std::log(factor) + 1);
}

std::optional<YarnScaling> parse_scaling(const ConfigKeys& scaling) {
  const std::string type = scaling_type(scaling);
  if (scaling.number("partial_rotary_factor", 1) != 1) {
    scaling.unsupported("partial_rotary_factor", "1, null or absent");
  }
  if (type == "default") {
    // Without a type, or with the plain one, only the base may stand here.
    for (const auto& [key, value] : scaling.object().items()) {
      const bool plain = key == "type" || key == "rope_type" || key == "rope_theta" ||
                         key == "partial_rotary_factor";
      if (!plain && !value.is_null()) {
        fail(ErrorCode::kMalformedInput, "{}: {} without a scaling type", scaling.where(),
             quote(key));
      }
    }
    return std::nullopt;
  }
  if (type != "yarn") {
    scaling.unsupported(scaling.find("type") != nullptr ? "type" : "rope_type", "'yarn' or none");
  }
  for (const auto& [key, value] : scaling.object().items()) {
    const bool known = key == "type" || key == "rope_type" || key == "rope_theta" ||
                       key == "factor" || key == "beta_fast" || key == "beta_slow" ||
                       key == "mscale" || key == "mscale_all_dim" ||
                       key == "partial_rotary_factor" || key == "original_max_position_embeddings";
    if (!known && !value.is_null()) {
      fail(ErrorCode::kUnsupported, "{}: {} is not a key of YaRN as DeepSeek publishes it",
           scaling.where(), quote(key));
    }
  }
  check_mscale(scaling);
  return YarnScaling{
      .factor = scaling.number("factor"),
      .beta_fast = scaling.number("beta_fast", 32),
      .beta_slow = scaling.number("beta_slow", 1),
      .mscale = scaling.number("mscale", 1),
      .mscale_all_dim = scaling.number("mscale_all_dim", 0),
      .original_max_position_embeddings = scaling.integer("original_max_position_embeddings")};
}

/// `rope_theta` stands beside `rope_scaling`, or inside `rope_parameters`.
RopeConfig parse_rope(const ConfigKeys& config) {
  RopeConfig rope;
  const std::optional<ConfigKeys> scaling = find_scaling(config);
  if (!scaling) {
    rope.theta = config.number("rope_theta");
    return rope;
  }
  rope.yarn = parse_scaling(*scaling);
  const bool outside = config.find("rope_theta") != nullptr;
  rope.theta = outside ? config.number("rope_theta") : scaling->number("rope_theta");
  if (outside && scaling->number("rope_theta", rope.theta) != rope.theta) {
    fail(ErrorCode::kMalformedInput, "{}: rope_theta is {}, but {} in it", scaling->where(),
         rope.theta, scaling->number("rope_theta"));
  }
  return rope;
}

/// Checks values that repeat others.
void check_agreement(const ConfigKeys& config, const ModelShape& shape) {
  const int kv_heads = config.integer("num_key_value_heads", shape.num_attention_heads);
  if (kv_heads != shape.num_attention_heads) {
    fail(ErrorCode::kMalformedInput,
         "{}: num_key_value_heads is {}, must equal num_attention_heads, {}, in MLA",
         config.where(), kv_heads, shape.num_attention_heads);
  }
  check_stated_head_dim(config, shape.qk_head_dim());
  check_stated_scale(config, shape.softmax_scale());
}

ModelShape parse_shape(const ConfigKeys& config) {
  ModelShape shape;
  shape.name = config.text("model_type");
  const ModelFamily* family = find_model_family(shape.name);
  if (family == nullptr || !family->weights) {
    config.unsupported("model_type", model_family_names(true));
  }
  check_attention_keys(config);

  shape.hidden_size = config.integer("hidden_size");
  // The config inside a golden file describes one layer and does not count it; such a config is
  // known by its softmax_scale, which no published one has.
  shape.num_hidden_layers = config.find("softmax_scale") != nullptr
                                ? config.integer("num_hidden_layers", 1)
                                : config.integer("num_hidden_layers");
  shape.num_attention_heads = config.integer("num_attention_heads");
  shape.q_lora_rank = config.integer("q_lora_rank", 0);
  shape.kv_lora_rank = config.integer("kv_lora_rank");
  shape.qk_nope_head_dim = config.integer("qk_nope_head_dim");
  shape.qk_rope_head_dim = config.integer("qk_rope_head_dim");
  shape.v_head_dim = config.integer("v_head_dim");
  shape.max_position_embeddings = config.integer("max_position_embeddings");
  shape.rope = parse_rope(config);
  try {
    validate(shape);
  } catch (const Error& error) {
    const bool absurd = error.code() == ErrorCode::kInvalidArgument;
    fail(absurd ? ErrorCode::kMalformedInput : error.code(), "{}: {}", config.where(),
         error.what());
  }
  check_agreement(config, shape);
  return shape;
}

/// The quantisation of a model that sees stands among its text's keys or around them.
void check_all_quantization(const Json& document, std::string_view source, int layers) {
  check_quantization(text_keys(document, source), layers);
  check_quantization(ConfigKeys(document, std::string(source)), layers);
}

}  // namespace

ModelShape parse_model_config(std::string_view json, std::string_view source) {
  const Json document = parse_config_text(json, source);
  ModelShape shape = parse_shape(text_keys(document, source));
  check_all_quantization(document, source, shape.num_hidden_layers);
  return shape;
}

ModelShape read_model_config(const std::filesystem::path& path) {
  ModelShape shape = parse_model_config(read_config_text(path), path.string());
  check_quantization_beside(path, shape.num_hidden_layers);
  return shape;
}

ModelConfig read_model_folder(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "config.json";
  const Json document = parse_config_text(read_config_text(path), path.string());
  ModelConfig config{.shape = parse_shape(text_keys(document, path.string())), .quantization = {}};
  const int layers = config.shape.num_hidden_layers;
  config.quantization = status_of([&] {
    check_all_quantization(document, path.string(), layers);
    check_quantization_beside(path, layers);
  });
  return config;
}

}  // namespace tributary
