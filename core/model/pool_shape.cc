#include "core/model/pool_shape.h"

#include <fmt/format.h>

#include <cmath>

#include "core/model/mla_shape.h"

namespace tributary {
namespace {

template <typename Number>
std::string text_of(Number value) {
  return fmt::format("{}", value);
}
std::string text_of(DType value) {
  return std::string(dtype_name(value));
}
std::string text_of(RowFormat value) {
  return row_format_name(value);
}

}  // namespace

std::optional<ShapeDifference> find_difference(const PoolShape& first, const PoolShape& second) {
  std::optional<ShapeDifference> difference;
  for_each_field(kPoolShapeFields, [&](const auto& field) {
    const auto a = first.*field.member;
    const auto b = second.*field.member;
    if (!difference && a != b) difference = {field.name, text_of(a), text_of(b)};
  });
  return difference;
}

std::optional<ShapeDifference> find_difference(const MlaShape& model, const PoolShape& pool) {
  constexpr double kScaleTolerance = 1e-5;
  std::optional<ShapeDifference> difference;
  const auto compare = [&](std::string_view field, int of_model, int of_pool) {
    if (!difference && of_model != of_pool) {
      difference = {field, text_of(of_model), text_of(of_pool)};
    }
  };
  compare("heads", model.heads, pool.heads);
  compare("kv_lora_rank", model.kv_lora_rank, pool.kv_lora_rank);
  compare("qk_rope_head_dim", model.qk_rope_head_dim, pool.qk_rope_head_dim);
  compare("layers", model.layers, pool.layers);
  compare("topk", model.topk, pool.topk);
  const double scale = pool.softmax_scale;
  if (!difference && !(std::abs(scale - model.softmax_scale) <= kScaleTolerance * scale)) {
    difference = {"softmax_scale", text_of(static_cast<float>(model.softmax_scale)),
                  text_of(pool.softmax_scale)};
  }
  return difference;
}

AttentionShape attention_shape(const MlaShape& model, RowFormat row_format, DType query_dtype,
                               int topk) {
  return {.heads = model.heads,
          .kv_lora_rank = model.kv_lora_rank,
          .qk_rope_head_dim = model.qk_rope_head_dim,
          .row_format = row_format,
          .query_dtype = query_dtype,
          .softmax_scale = static_cast<float>(model.softmax_scale),
          .topk = topk < 0 ? model.topk : topk};
}

}  // namespace tributary
