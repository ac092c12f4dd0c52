// Compares the sizes of a layer's host weights with its shape.
#include "core/layer/check_weights.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"
#include "core/base/error.h"

namespace tributary {
namespace {

void check_size(std::string_view name, const std::vector<float>& weight, int rows, int cols) {
  const std::size_t expected = static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols);
  if (weight.size() != expected) {
    fail(ErrorCode::kInvalidArgument, "weight {}: {} elements, expected {} ({} x {})", name,
         weight.size(), expected, rows, cols);
  }
}

void check_matrix(std::string_view name, const std::vector<float>& weight,
                  const std::vector<float>& scales, int rows, int cols) {
  check_size(name, weight, rows, cols);
  const std::size_t expected = static_cast<std::size_t>(ceil_div<std::int64_t>(rows, kScaleBlock)) *
                               static_cast<std::size_t>(ceil_div<std::int64_t>(cols, kScaleBlock));
  if (!scales.empty() && scales.size() != expected) {
    fail(ErrorCode::kInvalidArgument, "weight {}: {} block scales, expected none or {} ({} x {})",
         name, scales.size(), expected, rows, cols);
  }
}

}  // namespace

void check_layer_weights(const ModelShape& shape, const LayerWeights& weights) {
  validate(shape);
  const int heads = shape.num_attention_heads;
  const int query_rows = heads * shape.qk_head_dim();
  const bool low_rank = shape.q_lora_rank > 0;
  const LayerScales& scales = weights.scales;
  check_matrix("q_proj", weights.q_proj, scales.q_proj, low_rank ? 0 : query_rows,
               shape.hidden_size);
  check_matrix("q_a_proj", weights.q_a_proj, scales.q_a_proj, shape.q_lora_rank, shape.hidden_size);
  check_size("q_a_layernorm", weights.q_a_layernorm, shape.q_lora_rank, 1);
  check_matrix("q_b_proj", weights.q_b_proj, scales.q_b_proj, query_rows, shape.q_lora_rank);
  check_matrix("kv_a_proj_with_mqa", weights.kv_a_proj, scales.kv_a_proj, shape.latent_dim(),
               shape.hidden_size);
  check_size("kv_a_layernorm", weights.kv_a_layernorm, shape.kv_lora_rank, 1);
  check_matrix("kv_b_proj", weights.kv_b_proj, scales.kv_b_proj,
               heads * (shape.qk_nope_head_dim + shape.v_head_dim), shape.kv_lora_rank);
  check_matrix("o_proj", weights.o_proj, scales.o_proj, shape.hidden_size,
               heads * shape.v_head_dim);
}

}  // namespace tributary
