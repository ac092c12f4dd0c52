// The part of a model that decode attention needs to know, and the shape of a pool without weights:
// presets by name, or read from a file.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace tributary {

struct ModelShape;

/// The engine does rotation, gates and everything else that makes queries and rows: any model whose
/// cache is MLA rows has such a shape.
struct MlaShape {
  std::string name;  // preset name, `model_type` of a config, or the file's `name`
  int heads = 0;
  int kv_lora_rank = 0;
  int qk_rope_head_dim = 0;  // may be 0, and need not be rotated
  int layers = 0;            // the layers that have MLA rows
  double softmax_scale = 0;  // a model whose queries the engine scales may have any
  int topk = 0;              // rows that a query selects at most; 0: it attends to all
};

/// Checks every field against its bound; throws kInvalidArgument.
void validate(const MlaShape& shape);

[[nodiscard]] MlaShape mla_shape(const ModelShape& model);

/// Those of model_presets() in their order, then `deepseek-v3.2`, `kimi-k3`, `glm-5`,
/// `longcat-flash`, `minicpm3`.
[[nodiscard]] std::span<const MlaShape> mla_presets();

/// The bound on a model with grouped-query attention. Its row is `[V of all KV heads, K of all KV
/// heads]`, so every query head multiplies the whole row: KV heads times the arithmetic of its own
/// head. At the bound that is 16 times with heads of 128. Beyond it, caching such rows does not
/// pay.
inline constexpr int kMaxGroupedWidth = 4096;

/// Parses a shape or a model's config.json; `source` names it in messages.
///
/// A shape is an object of `heads`, `kv_lora_rank`, `qk_rope_head_dim`, `layers`, `softmax_scale`,
/// and optionally `topk` and `name`. A config.json is known by its `model_type`, one of
/// model_families(). Only the keys of heads, layers, rows and the softmax scale are read: weights,
/// their quantisation, norms and rotation are the engine's. Of a grouped model kv_lora_rank and
/// qk_rope_head_dim are each `KV heads * head_dim`. The keys may be those of its `text_config`.
///
/// Throws kMalformedInput for missing, mistyped, unknown or absurd values, and kUnsupported for
/// another model_type, another kind of attention (sliding windows, softcapping, other layer_types)
/// and a grouped width above kMaxGroupedWidth.
[[nodiscard]] MlaShape parse_mla_shape(std::string_view json, std::string_view source);

/// Finds the preset of that name, or reads the shape in the file of that path. Throws kNotFound
/// with the list of presets if there is neither, kIo, and the errors of parse_mla_shape.
[[nodiscard]] MlaShape find_mla_shape(const std::string& name_or_path);
/// The same for a model whose weights' dimensions are known: a preset of model_presets(), or the
/// config.json of a model that we load. Throws kInvalidArgument for another preset, with the list,
/// and the errors of find_mla_shape and read_model_config.
[[nodiscard]] ModelShape find_model_shape(const std::string& name_or_path);
/// Whether find_mla_shape treats it as a preset's name.
[[nodiscard]] bool is_mla_preset(std::string_view name);

}  // namespace tributary
