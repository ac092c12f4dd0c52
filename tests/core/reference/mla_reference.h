// A whole Multi-head Latent Attention layer in float64, written from the definition (DeepSeek-V2,
// arXiv:2405.04434, section 2.1). It is independent of MlaLayer and of every backend, which are
// judged by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/model/layer_weights.h"
#include "core/model/model_shape.h"
#include "core/model/row_format.h"

namespace tributary {

/// Letters: H heads, C kv_lora_rank, R qk_rope_head_dim, N qk_nope_head_dim, V v_head_dim. All
/// arrays are dense and row-major on the host; positions count from 0. Sizes that do not match
/// throw Error(kInvalidArgument).
class MlaReference {
 public:
  /// `weights` must outlive the reference. Throws kInvalidArgument when a weight's size is wrong.
  MlaReference(const ModelShape& shape, const LayerWeights& weights);

  /// hidden [tokens, hidden_size] -> latent rows [tokens, C + R], as a cache in `row_format`
  /// returns them; without a format they are not rounded.
  [[nodiscard]] std::vector<double> latent_rows(std::span<const float> hidden,
                                                std::span<const std::int64_t> positions,
                                                std::optional<RowFormat> row_format = {}) const;

  /// hidden [tokens, hidden_size] -> [tokens, H, N + R], the rope part rotated, unscaled.
  [[nodiscard]] std::vector<double> queries(std::span<const float> hidden,
                                            std::span<const std::int64_t> positions) const;

  /// Decode: queries [tokens, H, N + R] -> [tokens, H, C + R], the nope part times W_UK. To be
  /// used with reference_attend.
  [[nodiscard]] std::vector<double> absorb(std::span<const double> queries) const;

  /// Decode: softmax-weighted latents [tokens, H, C] -> W_UV per head -> o_proj ->
  /// [tokens, hidden_size].
  [[nodiscard]] std::vector<double> output(std::span<const double> latents) const;

  /// Prefill: causal attention in the MHA form (keys and values decompressed; nothing absorbed).
  /// queries [tokens, H, N + R] at positions 0, 1, ... and the rows [tokens, C + R] stored for them
  /// -> [tokens, hidden_size].
  [[nodiscard]] std::vector<double> prefill(std::span<const double> queries,
                                            std::span<const double> rows) const;

 private:
  void rotate(double* pairs, std::int64_t position) const;

  const LayerWeights* weights_;
  ModelShape shape_;
  std::vector<double> frequencies_;
  std::size_t hidden_, heads_, q_rank_, rank_, nope_, rope_, value_;
};

}  // namespace tributary
