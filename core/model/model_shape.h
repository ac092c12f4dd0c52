// The dimensions of an MLA model: presets by name, or read from a Hugging Face config.json.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"

namespace tributary {

/// YaRN as DeepSeek publishes it (arXiv:2309.00071; `rope_scaling` of config.json).
struct YarnScaling {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  double mscale = 1;
  double mscale_all_dim = 0;  // 0: the softmax scale is left alone
  int original_max_position_embeddings = 4096;
};

/// qk_head_dim^-0.5, times (0.1 * mscale_all_dim * ln(factor) + 1)^2 with YaRN and
/// mscale_all_dim != 0.
[[nodiscard]] double mla_softmax_scale(int qk_head_dim, const std::optional<YarnScaling>& yarn);

struct RopeConfig {
  double theta = 10000;
  std::optional<YarnScaling> yarn;
};

struct ModelShape {
  std::string name;  // preset name, or `model_type` of the config
  int hidden_size = 0;
  int num_hidden_layers = 0;
  int num_attention_heads = 0;
  int q_lora_rank = 0;  // 0: a plain q_proj
  int kv_lora_rank = 0;
  int qk_nope_head_dim = 0;
  int qk_rope_head_dim = 0;
  int v_head_dim = 0;
  int max_position_embeddings = 0;
  /// Of the norms of the latents. transformers and DeepSeek's code fix it, whatever a config's
  /// rms_norm_eps is; ports in the style of vLLM take that one.
  double latent_norm_eps = 1e-6;
  RopeConfig rope;

  [[nodiscard]] int latent_dim() const noexcept { return kv_lora_rank + qk_rope_head_dim; }
  [[nodiscard]] int qk_head_dim() const noexcept { return qk_nope_head_dim + qk_rope_head_dim; }
  [[nodiscard]] double softmax_scale() const;  // mla_softmax_scale() of its values
};

/// Checks every field against its bound. Throws kInvalidArgument, or kUnsupported for a shape that
/// is well-formed but not implemented (rotated cos/sin scale: mscale != mscale_all_dim).
void validate(const ModelShape& shape);

/// `deepseek-v3`, `deepseek-v2`, `deepseek-v2-lite`, `kimi-k2`, `kimi-k2.5`, `glm-4.7-flash`, in
/// that order.
[[nodiscard]] std::span<const ModelShape> model_presets();

/// Parses the text of a config.json, whose keys may be those of its `text_config`; `source` names
/// it in messages. Throws kMalformedInput for missing, mistyped or absurd values, and kUnsupported
/// for features that this program lacks (attention_bias, another RoPE style or scaling, a
/// quantisation of the attention other than FP8 e4m3 in 128 x 128 blocks, ...). Each message names
/// the key, the value, the bound. A `softmax_scale`, as in the config of a golden file, must equal
/// the computed one; num_hidden_layers may be left out (1) only beside it.
[[nodiscard]] ModelShape parse_model_config(std::string_view json, std::string_view source);
/// As above, and refuses a quantisation that a hf_quant_config.json beside the file names; also
/// throws kIo.
[[nodiscard]] ModelShape read_model_config(const std::filesystem::path& path);

struct ModelConfig {
  ModelShape shape;
  /// Not ok where, by the config's words, the attention's weights may be stored in a way that is
  /// not read here: their tensors decide.
  Status quantization;
};
/// Of a folder with weights; throws as read_model_config does, but not for a quantisation.
[[nodiscard]] ModelConfig read_model_folder(const std::filesystem::path& folder);

}  // namespace tributary
