// Loader of golden test vectors, format `mla-golden-1`: one MLA layer's configuration, weights,
// inputs and expected values in a safetensors file. The README beside the files says what each
// tensor is and how it was made.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/dtype.h"
#include "core/model/layer_weights.h"
#include "core/model/model_shape.h"
#include "core/model/row_format.h"

namespace tributary {

/// Expected values of one way of computing, over the same weights and inputs. B batch, P
/// prefill_len, D decode_steps, T = P + D, H heads, C kv_lora_rank, R qk_rope_head_dim.
struct GoldenGroup {
  std::string name;                        // `f32` or `bf16cache`
  RowFormat row_format = RowFormat::kF32;  // what the cache holds
  std::vector<double> prefill_output;      // [B, P, hidden_size]
  std::vector<double> decode_output;       // [B, D, hidden_size]
  std::vector<double> cache_kv;            // [B, T, C], after the last step
  std::vector<double> cache_pe;            // [B, T, R]
  std::vector<double> decode_q_absorbed;   // [B, D, H, C], unscaled
  std::vector<double> decode_q_pe;         // [B, D, H, R], unscaled
  std::vector<double> decode_lse;          // [B, D, H]
  std::vector<double> decode_latent;       // [B, D, H, C]
};

struct GoldenCase {
  std::filesystem::path path;
  std::string name;
  ModelShape shape;
  LayerWeights weights;
  int batch = 0;
  int prefill_len = 0;               // positions 0 .. prefill_len - 1, in one causal call
  int decode_steps = 0;              // then one token a step; step d sees prefill_len + d + 1 rows
  std::vector<float> hidden_states;  // [B, T, hidden_size]
  std::vector<GoldenGroup> groups;   // the groups in the file, at least one; `f32` first

  [[nodiscard]] int tokens() const noexcept { return prefill_len + decode_steps; }
};

/// Throws kIo, kMalformedInput, kUnsupported or kNotFound; the message names the file and the
/// tensor or metadata key. A group is loaded when any of its tensors is there, and must then be
/// complete.
[[nodiscard]] GoldenCase load_golden_case(const std::filesystem::path& path);

/// The group `fp8` of a file about sparse attention: a decode kernel alone, over selected rows and
/// over all. K topk, the rest as above.
struct GoldenSelection {
  std::string name;
  int heads = 0, kv_lora_rank = 0, qk_rope_head_dim = 0;
  int batch = 0, prefill_len = 0, decode_steps = 0, topk = 0;
  double softmax_scale = 0;
  std::vector<std::byte> stored;                // [B, T] rows of fp8_ds_mla
  std::vector<float> rows;                      // [B, T, C + R], their values, exact in bf16
  std::vector<float> plain_rows;                // [B, T, C + R], what they were made of
  std::vector<float> query;                     // [B, D, H, C + R], unscaled, exact in bf16
  std::vector<std::int32_t> selected;           // [B, D, K], ascending; -1 behind the last
  std::vector<double> lse;                      // [B, D, H]
  std::vector<double> latent;                   // [B, D, H, C]
  std::vector<double> dense_lse, dense_latent;  // likewise, over all rows that a token sees

  [[nodiscard]] int tokens() const noexcept { return prefill_len + decode_steps; }
  [[nodiscard]] int latent_dim() const noexcept { return kv_lora_rank + qk_rope_head_dim; }
};

/// Nothing for a file without that group. Throws as load_golden_case does.
[[nodiscard]] std::optional<GoldenSelection> find_golden_selection(
    const std::filesystem::path& path);

}  // namespace tributary
