// The families of models that are known by the `model_type` of a config.json. The one table: what a
// pool without weights serves, whose weights are read, and what the Python package takes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tributary {

enum class ModelRows : std::uint8_t {
  kLatent,   // multi-head latent attention
  kGrouped,  // grouped-query attention, whose keys and values are a row (mla_shape.h)
};

struct ModelFamily {
  std::string_view model_type;
  ModelRows rows = ModelRows::kLatent;
  bool weights = false;  // parse_model_config() reads it: rotation is interleaved, nothing else
                         // is scaled
  bool selects = false;  // a token attends to `index_topk` rows
  bool hybrid = false;   // some layers keep another kind of state: `linear_attn_config`
};

[[nodiscard]] std::span<const ModelFamily> model_families();
/// Null for another model_type.
[[nodiscard]] const ModelFamily* find_model_family(std::string_view model_type);
/// `deepseek_v2, deepseek_v3, ...`
[[nodiscard]] std::string model_family_names(bool with_weights);

}  // namespace tributary
