// Reads a model's dimensions from a Hugging Face config.json. What would change the attention and
// is not implemented is refused by name; keys about other parts of the model are left alone.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/base/strict_json.h"
#include "core/model/model_shape.h"

namespace tributary {
namespace {

using Json = nlohmann::json;

/// Published files have 2 KiB; the bound keeps a wrong path from filling the memory.
constexpr std::size_t kMaxConfigBytes = std::size_t{1} << 20;

/// Relative difference up to which a stated softmax_scale agrees: one that went through fp32 is
/// off by 2^-24, the smallest mistake that can be made (mscale left out) by far more.
constexpr double kSoftmaxScaleTolerance = 1e-6;

std::string shown(const Json& value) {
  return quote(value.dump(), 60);
}

/// Typed access to the keys of one object; null counts as absent.
class Keys {
 public:
  Keys(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) {
      fail(ErrorCode::kMalformedInput, "{} is {}, must be a JSON object", where_, shown(object));
    }
  }

  [[nodiscard]] const std::string& where() const { return where_; }
  [[nodiscard]] const Json& object() const { return object_; }

  [[nodiscard]] const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  [[nodiscard]] const Json& require(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) fail(ErrorCode::kMalformedInput, "{}: {} is missing", where_, key);
    return *value;
  }

  [[nodiscard]] int integer(const char* key) const { return to_int(key, require(key)); }
  [[nodiscard]] int integer(const char* key, int absent) const {
    const Json* value = find(key);
    return value == nullptr ? absent : to_int(key, *value);
  }
  [[nodiscard]] double number(const char* key) const { return to_double(key, require(key)); }
  [[nodiscard]] double number(const char* key, double absent) const {
    const Json* value = find(key);
    return value == nullptr ? absent : to_double(key, *value);
  }
  [[nodiscard]] bool boolean(const char* key, bool absent) const {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (!value->is_boolean()) mistyped(key, *value, "true or false");
    return value->get<bool>();
  }
  [[nodiscard]] const std::string& text(const char* key) const {
    const Json& value = require(key);
    if (!value.is_string()) mistyped(key, value, "a string");
    return value.get_ref<const std::string&>();
  }

  [[noreturn]] void unsupported(const char* key, std::string_view supported) const {
    fail(ErrorCode::kUnsupported, "{}: {} is {}; supported: {}", where_, key,
         shown(object_.at(key)), supported);
  }

 private:
  [[noreturn]] void mistyped(const char* key, const Json& value, std::string_view wanted) const {
    fail(ErrorCode::kMalformedInput, "{}: {} is {}, must be {}", where_, key, shown(value), wanted);
  }
  [[nodiscard]] int to_int(const char* key, const Json& value) const {
    // Compared as what it is stored as: a value beyond 2^63 must not wrap into the range.
    constexpr int kMax = std::numeric_limits<int>::max();
    const bool fits = value.is_number_unsigned()
                          ? value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMax)
                          : value.is_number_integer() &&
                                value.get<std::int64_t>() >= std::numeric_limits<int>::min();
    if (!fits) mistyped(key, value, "an integer of at most 31 bits");
    return value.get<int>();
  }
  [[nodiscard]] double to_double(const char* key, const Json& value) const {
    if (!value.is_number()) mistyped(key, value, "a number");
    return value.get<double>();
  }

  const Json& object_;
  std::string where_;
};

/// The scaling's name under either of its two keys: `default` where there is none.
std::string scaling_type(const Keys& scaling) {
  const bool has_type = scaling.find("type") != nullptr;
  const bool has_rope_type = scaling.find("rope_type") != nullptr;
  if (!has_type && !has_rope_type) return "default";
  std::string type = scaling.text(has_type ? "type" : "rope_type");
  if (has_type && has_rope_type && scaling.text("rope_type") != type) {
    fail(ErrorCode::kMalformedInput, "{}: type is {} and rope_type {}", scaling.where(),
         shown(scaling.require("type")), shown(scaling.require("rope_type")));
  }
  return type;
}

std::optional<YarnScaling> parse_scaling(const Keys& scaling) {
  const std::string type = scaling_type(scaling);
  if (type == "default") {
    // Without a type, or with the plain one, only the base may stand here.
    for (const auto& [key, value] : scaling.object().items()) {
      if (key != "type" && key != "rope_type" && key != "rope_theta" && !value.is_null()) {
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
                       key == "original_max_position_embeddings";
    if (!known && !value.is_null()) {
      fail(ErrorCode::kUnsupported, "{}: {} is not a key of YaRN as DeepSeek publishes it",
           scaling.where(), quote(key));
    }
  }
  return YarnScaling{
      .factor = scaling.number("factor"),
      .beta_fast = scaling.number("beta_fast", 32),
      .beta_slow = scaling.number("beta_slow", 1),
      .mscale = scaling.number("mscale", 1),
      .mscale_all_dim = scaling.number("mscale_all_dim", 0),
      .original_max_position_embeddings = scaling.integer("original_max_position_embeddings")};
}

/// `rope_theta` beside `rope_scaling`, or both inside `rope_parameters`, as transformers 5 writes.
RopeConfig parse_rope(const Keys& config) {
  const bool old_style = config.find("rope_scaling") != nullptr;
  const bool new_style = config.find("rope_parameters") != nullptr;
  if (old_style && new_style) {
    fail(ErrorCode::kMalformedInput, "{}: both rope_scaling and rope_parameters are given",
         config.where());
  }
  RopeConfig rope;
  if (!old_style && !new_style) {
    rope.theta = config.number("rope_theta");
    return rope;
  }
  const char* key = old_style ? "rope_scaling" : "rope_parameters";
  const Keys scaling(config.require(key), config.where() + ": " + key);
  rope.yarn = parse_scaling(scaling);
  const bool outside = config.find("rope_theta") != nullptr;
  rope.theta = outside ? config.number("rope_theta") : scaling.number("rope_theta");
  if (outside && scaling.number("rope_theta", rope.theta) != rope.theta) {
    fail(ErrorCode::kMalformedInput, "{}: rope_theta is {}, but {} in {}", config.where(),
         rope.theta, scaling.number("rope_theta"), key);
  }
  return rope;
}

/// FP8 e4m3 with one scale per 128 x 128 block, as DeepSeek-V3 is published, or none.
void check_quantization(const Keys& config) {
  const Json* value = config.find("quantization_config");
  if (value == nullptr) return;
  const Keys quantization(*value, config.where() + ": quantization_config");
  if (quantization.text("quant_method") != "fp8") quantization.unsupported("quant_method", "'fp8'");
  if (quantization.find("fmt") != nullptr && quantization.text("fmt") != "e4m3") {
    quantization.unsupported("fmt", "'e4m3'");
  }
  if (quantization.require("weight_block_size") != Json::array({128, 128})) {
    quantization.unsupported("weight_block_size", "[128, 128]");
  }
}

/// Keys that change what attention computes, at the one value that we compute.
void check_unsupported(const Keys& config) {
  for (const char* key : {"attention_bias", "mla_use_nope", "qk_layernorm"}) {
    if (config.boolean(key, false)) config.unsupported(key, "false");
  }
  for (const char* key : {"rope_interleave", "use_mla"}) {
    if (!config.boolean(key, true)) config.unsupported(key, "true");
  }
  for (const char* key :
       {"sliding_window", "attn_logit_softcapping", "index_topk", "partial_rotary_factor"}) {
    if (config.find(key) != nullptr) config.unsupported(key, "null or absent");
  }
  check_quantization(config);
}

/// Values that repeat what others say.
void check_agreement(const Keys& config, const ModelShape& shape) {
  const int kv_heads = config.integer("num_key_value_heads", shape.num_attention_heads);
  if (kv_heads != shape.num_attention_heads) {
    fail(ErrorCode::kMalformedInput,
         "{}: num_key_value_heads is {}, must equal num_attention_heads, {}, in MLA",
         config.where(), kv_heads, shape.num_attention_heads);
  }
  const int qk_head_dim = config.integer("qk_head_dim", shape.qk_head_dim());
  if (qk_head_dim != shape.qk_head_dim()) {
    fail(ErrorCode::kMalformedInput,
         "{}: qk_head_dim is {}, but qk_nope_head_dim + qk_rope_head_dim is {}", config.where(),
         qk_head_dim, shape.qk_head_dim());
  }
  const double computed = shape.softmax_scale();
  const double stated = config.number("softmax_scale", computed);
  if (!(std::abs(stated - computed) <= kSoftmaxScaleTolerance * computed)) {
    fail(ErrorCode::kMalformedInput, "{}: softmax_scale is {}, but the other values give {}",
         config.where(), stated, computed);
  }
}

}  // namespace

ModelShape parse_model_config(std::string_view json, std::string_view source) {
  if (json.size() > kMaxConfigBytes) {
    fail(ErrorCode::kMalformedInput, "{}: {} bytes, a model config has at most {}", source,
         json.size(), kMaxConfigBytes);
  }
  const Json document = parse_strict_json(json, source);
  const Keys config(document, std::string(source));

  ModelShape shape;
  shape.name = config.text("model_type");
  if (shape.name != "deepseek_v2" && shape.name != "deepseek_v3" && shape.name != "kimi_k2") {
    config.unsupported("model_type", "'deepseek_v2', 'deepseek_v3', 'kimi_k2'");
  }
  check_unsupported(config);

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
  shape.rms_norm_eps = config.number("rms_norm_eps");
  shape.rope = parse_rope(config);
  try {
    validate(shape);
  } catch (const Error& error) {
    const bool absurd = error.code() == ErrorCode::kInvalidArgument;
    fail(absurd ? ErrorCode::kMalformedInput : error.code(), "{}: {}", source, error.what());
  }
  check_agreement(config, shape);
  return shape;
}

ModelShape read_model_config(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(ErrorCode::kIo, "{}: cannot be opened", path.string());
  std::string text(kMaxConfigBytes + 1, '\0');  // one more, so that a longer file is noticed
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) fail(ErrorCode::kIo, "{}: cannot be read", path.string());
  text.resize(static_cast<std::size_t>(file.gcount()));
  return parse_model_config(text, path.string());
}

}  // namespace tributary
