#include "core/model/attention_keys.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace tributary {
namespace {

/// Keys that are read elsewhere, or that name attention and leave its result alone.
constexpr std::array<std::string_view, 35> kKnown{
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "qk_head_dim",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "q_lora_rank",
    "kv_lora_rank",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "rope_interleave",
    "use_mla",
    "attention_bias",
    "partial_rotary_factor",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "max_position_embeddings",
    "softmax_scale",
    "rms_norm_eps",
    "layer_norm_eps",
    "norm_eps",
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_attn_implementation_internal",
    "compression_config",
    // Of the experts, of the residual stream, of the logits.
    "norm_topk_prob",
    "scale_depth",
    "scale_emb",
    "logit_scale",
    "logits_scaling",
    "final_logit_softcapping",
};
/// Words of the attention alone.
constexpr std::array<std::string_view, 30> kOfAttention{
    "attn",      "attention", "mla",   "gqa",      "mqa",   "qk",       "kv",  "qkv",
    "rope",      "rotary",    "nope",  "sink",     "sinks", "softcap",  "kda", "softcapping",
    "window",    "windows",   "alibi", "position", "mamba", "deltanet", "gdn", "lightning",
    "retention", "dsa",       "nsa",   "swa",      "moba",  "ssm",
};
/// Words that other parts of a model have as well.
constexpr std::array<std::string_view, 29> kOfMany{
    "gate",        "gated",      "gates",   "gating",    "norm",   "norms",
    "layernorm",   "scale",      "scales",  "scaling",   "bias",   "sparse",
    "index",       "indexer",    "head",    "heads",     "query",  "lora",
    "linear",      "conv",       "softmax", "recurrent", "hybrid", "compress",
    "compression", "multiplier", "types",   "logit",     "kpool",
};
/// Words of the parts that have them too.
constexpr std::array<std::string_view, 34> kOfOthers{
    "moe",      "mlp",     "ffn",    "expert",     "experts",   "router",       "routed",
    "vocab",    "embed",   "emb",    "lm",         "loss",      "aux",          "initializer",
    "mtp",      "nextn",   "vision", "visual",     "image",     "audio",        "video",
    "media",    "token",   "tokens", "classifier", "projector", "embedding",    "embeddings",
    "residual", "adapter", "mm",     "vit",        "draft",     "quantization",
};
/// Words of how attention is run, which its result does not depend on.
constexpr std::array<std::string_view, 4> kOfRunning{"flash", "dropout", "pdrop", "sdpa"};
/// Keys without such a word by which layers differ in kind.
constexpr std::array<std::string_view, 3> kOfLayers{"layers_block_type", "layer_group_size",
                                                    "layer_pattern"};

template <typename List>
bool contains(const List& list, std::string_view name) {
  return std::ranges::find(list, name) != list.end();
}

/// Lower-case words between underscores and other marks, and where a capital begins one.
std::vector<std::string> words_of(std::string_view key) {
  std::vector<std::string> words(1);
  char before = '_';
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    const bool letter = std::isalnum(byte) != 0;
    const bool begins =
        std::isupper(byte) != 0 && std::islower(static_cast<unsigned char>(before)) != 0;
    if ((!letter || begins) && !words.back().empty()) words.emplace_back();
    if (letter) words.back() += static_cast<char>(std::tolower(byte));
    before = c;
  }
  return words;
}

bool may_change_attention(std::string_view key) {
  if (contains(kKnown, key)) return false;
  if (contains(kOfLayers, key)) return true;
  const std::vector<std::string> words = words_of(key);
  const auto has_one_of = [&](const auto& list) {
    return std::ranges::any_of(words,
                               [&](const std::string& word) { return contains(list, word); });
  };
  if (has_one_of(kOfRunning)) return false;
  return has_one_of(kOfAttention) || (has_one_of(kOfMany) && !has_one_of(kOfOthers));
}

bool is_neutral(const nlohmann::json& value) {
  constexpr std::string_view kFull = "full_attention";
  if (value.is_array()) {
    return std::ranges::all_of(value, [&](const auto& each) { return each == kFull; });
  }
  return value.is_null() || value == false || value == kFull ||
         (value.is_object() && value.empty());
}

}  // namespace

void check_attention_keys(const ConfigKeys& config) {
  if (config.boolean("attention_bias", false)) config.unsupported("attention_bias", "false");
  for (const char* key : {"rope_interleave", "use_mla"}) {
    if (!config.boolean(key, true)) config.unsupported(key, "true");
  }
  const nlohmann::json* window = config.find("sliding_window");
  if (window != nullptr && !is_neutral(*window) && config.boolean("use_sliding_window", true)) {
    config.unsupported("sliding_window", "null, absent, or with use_sliding_window false");
  }
  if (config.number("partial_rotary_factor", 1) != 1) {
    config.unsupported("partial_rotary_factor", "1, null or absent");
  }
  for (const auto& [key, value] : config.object().items()) {
    if (may_change_attention(key) && !is_neutral(value)) {
      config.unsupported(key.c_str(),
                         "absent, null or false, beside weights: it may change the "
                         "attention, and is not known here");
    }
  }
}

}  // namespace tributary
