// Reads the shape of a pool without weights: from a file of its own fields, or from a config.json,
// of which it reads nothing about weights, norms and rotation.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/model/config_keys.h"
#include "core/model/mla_shape.h"
#include "core/model/model_family.h"
#include "core/model/model_limits.h"
#include "core/model/model_shape.h"
#include "core/model/scaling_keys.h"

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

/// What of YaRN scales the scores. The rest of a scaling is rotation, the engine's affair.
std::optional<YarnScaling> scaling_of_scores(const ConfigKeys& config, const ModelFamily& family) {
  const std::optional<ConfigKeys> scaling = find_scaling(config);
  if (!scaling) return {};
  const double mscale = scaling->number("mscale_all_dim", 0);
  if (mscale == 0) return {};
  if (family.hybrid || scaling_type(*scaling) != "yarn") {
    scaling->unsupported("mscale_all_dim", family.hybrid ? "absent, for this model_type"
                                                         : "absent, but in a scaling of type yarn");
  }
  const double factor = scaling->number("factor");
  const auto check_bounds = [&](const char* key, double value, double low, double high) {
    if (value >= low && value <= high) return;
    fail(ErrorCode::kMalformedInput, "{}: {} is {}, must be in {} .. {}", scaling->where(), key,
         value, low, high);
  };
  check_bounds("factor", factor, 1, kMaxYarn);
  check_bounds("mscale_all_dim", mscale, 0, kMaxMscale);
  return YarnScaling{.factor = factor, .mscale_all_dim = mscale};
}

/// Throws unless every layer attends to all rows, or to those that it selects. transformers lists
/// the layers' kinds also where they are all alike.
void check_layer_types(const ConfigKeys& config, const ModelFamily& family) {
  const Json* types = config.find("layer_types");
  if (types == nullptr || family.hybrid) return;
  const std::string_view served = family.selects ? "indexed_attention" : "full_attention";
  const auto is_served = [&](const Json& type) { return type == served; };
  if (!types->is_array() || !std::ranges::all_of(*types, is_served)) {
    config.unsupported("layer_types", fmt::format("{} for every layer, or absent", served));
  }
}

/// Checks keys by which a layer attends to other rows or in another way.
void check_attention(const ConfigKeys& config, const ModelFamily& family) {
  if (config.find("attn_logit_softcapping") != nullptr) {
    config.unsupported("attn_logit_softcapping", "null or absent");
  }
  if (config.boolean("use_sliding_window", true) && config.find("sliding_window") != nullptr) {
    config.unsupported("sliding_window", "null, absent, or with use_sliding_window false");
  }
  if (!family.selects && config.find("index_topk") != nullptr) {
    config.unsupported("index_topk", "null or absent, for this model_type");
  }
  if (!family.hybrid && config.find("linear_attn_config") != nullptr) {
    config.unsupported("linear_attn_config", "null or absent, for this model_type");
  }
  check_layer_types(config, family);
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

MlaShape parse_latent(const ConfigKeys& config, const ModelFamily& family) {
  // A layer of LongCat-Flash attends twice.
  const int layers = family.model_type == "longcat_flash"
                         ? 2 * std::min(config.integer("num_layers"), 1 << 20)
                     : family.hybrid ? attending_layers(config)
                                     : config.integer("num_hidden_layers");
  const std::int64_t qk_head_dim = std::int64_t{at_least(config, "qk_nope_head_dim", 0)} +
                                   at_least(config, "qk_rope_head_dim", 0);
  if (qk_head_dim > std::numeric_limits<int>::max()) {
    fail(ErrorCode::kMalformedInput, "{}: qk_nope_head_dim + qk_rope_head_dim is {}",
         config.where(), qk_head_dim);
  }
  check_stated_head_dim(config, static_cast<int>(qk_head_dim));
  const double scale =
      mla_softmax_scale(static_cast<int>(qk_head_dim), scaling_of_scores(config, family));
  check_stated_scale(config, scale);
  return {.name = std::string(family.model_type),
          .heads = config.integer("num_attention_heads"),
          .kv_lora_rank = config.integer("kv_lora_rank"),
          .qk_rope_head_dim = config.integer("qk_rope_head_dim"),
          .layers = layers,
          .softmax_scale = scale,
          .topk = family.selects ? at_least(config, "index_topk", 1) : 0};
}

MlaShape parse_grouped(const ConfigKeys& config, const ModelFamily& family) {
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
  return {.name = std::string(family.model_type),
          .heads = heads,
          .kv_lora_rank = static_cast<int>(width),
          .qk_rope_head_dim = static_cast<int>(width),
          .layers = config.integer("num_hidden_layers"),
          .softmax_scale = std::pow(static_cast<double>(head_dim), -0.5),
          .topk = 0};
}

MlaShape parse_config(const ConfigKeys& config) {
  const ModelFamily* family = find_model_family(config.text("model_type"));
  if (family == nullptr) {
    config.unsupported("model_type",
                       model_family_names(false) +
                           "; a file of heads, kv_lora_rank, qk_rope_head_dim, layers and "
                           "softmax_scale serves any other");
  }
  check_attention(config, *family);
  return family->rows == ModelRows::kGrouped ? parse_grouped(config, *family)
                                             : parse_latent(config, *family);
}

}  // namespace

MlaShape parse_mla_shape(std::string_view json, std::string_view source) {
  const Json document = parse_config_text(json, source);
  const ConfigKeys keys = text_keys(document, source);
  MlaShape shape = keys.find("model_type") != nullptr ? parse_config(keys) : parse_fields(keys);
  try {
    validate(shape);
  } catch (const Error& error) {
    fail(ErrorCode::kMalformedInput, "{}: {}", source, error.what());
  }
  return shape;
}

}  // namespace tributary
