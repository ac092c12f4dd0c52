// The attention weights of one layer on the host, as published: loaded from safetensors under the
// Hugging Face DeepSeek names, FP8 dequantised.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/model/model_shape.h"
#include "core/model/safetensors.h"

namespace tributary {

/// The block scales of matrices that were published in FP8, row-major [ceil(rows / kScaleBlock),
/// ceil(cols / kScaleBlock)]: each value of such a matrix is an e4m3 number times its block's
/// scale. Empty if the matrix was published in another type or its scales are not known.
struct LayerScales {
  std::vector<float> q_proj, q_a_proj, q_b_proj, kv_a_proj, kv_b_proj, o_proj;
};

/// Host weights, fp32, row-major [out, in], used as y = W x. C = kv_lora_rank,
/// R = qk_rope_head_dim, N = qk_nope_head_dim, V = v_head_dim, H = heads.
struct LayerWeights {
  std::vector<float> q_proj;          // [H (N + R), hidden]; only when q_lora_rank == 0
  std::vector<float> q_a_proj;        // [q_lora_rank, hidden]; else these three
  std::vector<float> q_a_layernorm;   // [q_lora_rank]
  std::vector<float> q_b_proj;        // [H (N + R), q_lora_rank]
  std::vector<float> kv_a_proj;       // [C + R, hidden]: latent rows, then the rope key
  std::vector<float> kv_a_layernorm;  // [C]
  std::vector<float> kv_b_proj;       // [H (N + V), C]: per head N rows W_UK, then V rows W_UV
  std::vector<float> o_proj;          // [hidden, H V]
  LayerScales scales = {};
};

/// Finds tensors over the files of one model: a folder's `*.safetensors`, by name.
class WeightFiles {
 public:
  /// A single file, or a folder of them. Throws kIo, kMalformedInput (also when a name occurs
  /// twice), kNotFound for a folder without any.
  /// A missing tensor's error names the file that the folder's index has for it.
  explicit WeightFiles(const std::filesystem::path& file_or_folder);

  [[nodiscard]] bool contains(std::string_view name) const;
  /// The tensors whose name begins so, of whatever dtype.
  [[nodiscard]] std::vector<std::string> names(std::string_view prefix) const;
  /// Loads a tensor as floats: bf16, fp32, or FP8 e4m3 with `NAME_scale_inv` (fp32, [ceil(rows /
  /// 128), ceil(cols / 128)]: each element of a 128 x 128 block is multiplied by the block's
  /// scale). The shape is [rows, cols], or [rows] when cols == 0. Throws kNotFound; kMalformedInput
  /// for another shape, a missing or superfluous scale, a NaN or an infinity; kUnsupported for
  /// another dtype.
  [[nodiscard]] std::vector<float> load(std::string_view name, std::int64_t rows,
                                        std::int64_t cols) const;
  /// The block scales of a matrix in FP8, checked as load() does; empty for other dtypes.
  [[nodiscard]] std::vector<float> load_scales(std::string_view name, std::int64_t rows,
                                               std::int64_t cols) const;

 private:
  [[nodiscard]] const SafetensorsFile* find(std::string_view name) const;
  /// The file of a tensor that must exist.
  [[nodiscard]] const SafetensorsFile& file_of(std::string_view name) const;
  std::vector<SafetensorsFile> files_;
  std::filesystem::path index_;  // of a folder; it need not be there
};

/// What stands before a layer's number in these files: one of kLayerPrefixes, the first if none has
/// the attention of layer 0.
[[nodiscard]] std::string_view layer_prefix(const WeightFiles& files);

/// Throws what `validate` and `WeightFiles::load` throw, and kUnsupported for a tensor of the
/// attention that we do not know: a gate, a bias, another norm. `prefix` stands before
/// `self_attn.`: "model.layers.3." in a checkpoint, "" in a golden file.
[[nodiscard]] LayerWeights load_layer_weights(const WeightFiles& files, const ModelShape& shape,
                                              std::string_view prefix);

}  // namespace tributary
