#include "core/model/mla_shape.h"

#include <algorithm>
#include <cmath>
#include <system_error>
#include <vector>

#include "core/base/error.h"
#include "core/base/quote.h"
#include "core/model/config_keys.h"
#include "core/model/model_limits.h"
#include "core/model/model_shape.h"

namespace tributary {
namespace {

// A generous multiple of the published 512 + 64, small enough that a query of all heads has fewer
// than 2^31 values.
constexpr int kMaxRowPart = 1 << 16;
// Published models have 0.06 to 0.14; a value outside these bounds is in the wrong unit.
constexpr double kLeastScale = 1e-6;
constexpr double kMostScale = 1e6;

void check(std::string_view field, auto value, decltype(value) low, decltype(value) high) {
  if (!(value >= low && value <= high)) {  // so that NaN fails too
    fail(ErrorCode::kInvalidArgument, "{} is {}, must be in {} .. {}", field, value, low, high);
  }
}

MlaShape preset(std::string_view name, int heads, int kv_lora_rank, int qk_rope_head_dim,
                int layers, int qk_head_dim, int topk = 0) {
  return {.name = std::string(name),
          .heads = heads,
          .kv_lora_rank = kv_lora_rank,
          .qk_rope_head_dim = qk_rope_head_dim,
          .layers = layers,
          .softmax_scale = std::pow(qk_head_dim, -0.5),
          .topk = topk};
}

std::vector<MlaShape> make_presets() {
  std::vector<MlaShape> presets;
  for (const ModelShape& model : model_presets()) presets.push_back(mla_shape(model));
  // Sources of the values: deploy/recipes/shapes.md.
  presets.push_back(*std::ranges::find(presets, "deepseek-v3", &MlaShape::name));
  presets.back().name = "deepseek-v3.2";
  presets.back().topk = 2048;
  presets.push_back(preset("kimi-k3", 96, 512, 64, 24, 128 + 64));
  presets.push_back(preset("glm-5", 64, 512, 64, 78, 192 + 64, 2048));
  presets.push_back(preset("longcat-flash", 64, 512, 64, 2 * 28, 128 + 64));
  presets.push_back(preset("minicpm3", 40, 256, 32, 62, 64 + 32));
  return presets;
}

const MlaShape* find_preset(std::string_view name) {
  for (const MlaShape& shape : mla_presets()) {
    if (shape.name == name) return &shape;
  }
  return nullptr;
}

}  // namespace

void validate(const MlaShape& shape) {
  check("heads", shape.heads, 1, kMaxHeads);
  check("kv_lora_rank", shape.kv_lora_rank, 1, kMaxRowPart);
  check("qk_rope_head_dim", shape.qk_rope_head_dim, 0, kMaxRowPart);
  check("layers", shape.layers, 1, kMaxLayers);
  check("softmax_scale", shape.softmax_scale, kLeastScale, kMostScale);
  check("topk", shape.topk, 0, kMaxTopk);
}

MlaShape mla_shape(const ModelShape& model) {
  return {.name = model.name,
          .heads = model.num_attention_heads,
          .kv_lora_rank = model.kv_lora_rank,
          .qk_rope_head_dim = model.qk_rope_head_dim,
          .layers = model.num_hidden_layers,
          .softmax_scale = model.softmax_scale(),
          .topk = 0};
}

std::span<const MlaShape> mla_presets() {
  static const std::vector<MlaShape> presets = make_presets();
  return presets;
}

bool is_mla_preset(std::string_view name) {
  return find_preset(name) != nullptr;
}

MlaShape find_mla_shape(const std::string& name_or_path) {
  if (const MlaShape* shape = find_preset(name_or_path)) return *shape;
  std::error_code ignored;
  if (std::filesystem::exists(name_or_path, ignored)) {
    return parse_mla_shape(read_config_text(name_or_path), name_or_path);
  }
  std::string known;
  for (const MlaShape& shape : mla_presets()) {
    known += known.empty() ? shape.name : ", " + shape.name;
  }
  fail(ErrorCode::kNotFound, "no shape preset {}, and no file of that name; there are: {}",
       quote(name_or_path), known);
}

ModelShape find_model_shape(const std::string& name_or_path) {
  std::string known;
  for (const ModelShape& model : model_presets()) {
    if (model.name == name_or_path) return model;
    known += known.empty() ? model.name : ", " + model.name;
  }
  if (is_mla_preset(name_or_path)) {
    fail(ErrorCode::kInvalidArgument,
         "shape {} is without weights: it has no qk_nope_head_dim and no v_head_dim; there are {}, "
         "and the config.json of a model with weights",
         quote(name_or_path), known);
  }
  std::error_code ignored;
  if (!std::filesystem::exists(name_or_path, ignored)) (void)find_mla_shape(name_or_path);
  return read_model_config(name_or_path);
}

}  // namespace tributary
