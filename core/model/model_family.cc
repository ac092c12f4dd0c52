#include "core/model/model_family.h"

#include <algorithm>
#include <array>

namespace tributary {

std::span<const ModelFamily> model_families() {
  static constexpr std::array<ModelFamily, 15> kFamilies{{
      {.model_type = "deepseek_v2", .weights = true},
      {.model_type = "deepseek_v3", .weights = true},
      {.model_type = "deepseek_v32", .selects = true},
      {.model_type = "kimi_k2", .weights = true},
      {.model_type = "glm_moe_dsa", .selects = true},
      {.model_type = "glm4_moe_lite", .weights = true},
      {.model_type = "youtu", .weights = true},
      {.model_type = "mistral4"},
      {.model_type = "kimi_linear", .hybrid = true},
      {.model_type = "longcat_flash"},
      {.model_type = "minicpm3"},
      {.model_type = "llama", .rows = ModelRows::kGrouped},
      {.model_type = "mistral", .rows = ModelRows::kGrouped},
      {.model_type = "qwen2", .rows = ModelRows::kGrouped},
      {.model_type = "qwen3", .rows = ModelRows::kGrouped},
  }};
  return kFamilies;
}

const ModelFamily* find_model_family(std::string_view model_type) {
  const auto families = model_families();
  const auto it = std::ranges::find(families, model_type, &ModelFamily::model_type);
  return it == families.end() ? nullptr : &*it;
}

std::string model_family_names(bool with_weights) {
  std::string names;
  for (const ModelFamily& family : model_families()) {
    if (with_weights && !family.weights) continue;
    names += names.empty() ? "" : ", ";
    names += family.model_type;
  }
  return names;
}

}  // namespace tributary
