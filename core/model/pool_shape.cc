#include "core/model/pool_shape.h"

#include <fmt/format.h>

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
  return std::string(row_format_name(value));
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
