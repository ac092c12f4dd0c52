#include "core/model/pool_shape.h"

#include <fmt/format.h>

#include "core/model/mla_shape.h"
#include "core/model/model_shape.h"

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
std::string text_of(ProjectAt value) {
  return std::string(project_at_name(value));
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

AttentionShape attention_shape(const MlaShape& model, RowFormat row_format, DType query_dtype) {
  return {.heads = model.heads,
          .kv_lora_rank = model.kv_lora_rank,
          .qk_rope_head_dim = model.qk_rope_head_dim,
          .row_format = row_format,
          .query_dtype = query_dtype,
          .softmax_scale = static_cast<float>(model.softmax_scale)};
}

AttentionShape attention_shape(const ModelShape& model, RowFormat row_format, DType query_dtype,
                               ProjectAt project_at) {
  AttentionShape shape = attention_shape(mla_shape(model), row_format, query_dtype);
  shape.v_head_dim = model.v_head_dim;
  shape.project_at = project_at;
  if (shape.projects_leaves()) shape.qk_nope_head_dim = model.qk_nope_head_dim;
  return shape;
}

AttentionShape find_attention_shape(const std::string& name_or_path, RowFormat row_format,
                                    DType query_dtype, ProjectAt project_at) {
  return project_at == ProjectAt::kHome
             ? attention_shape(find_mla_shape(name_or_path), row_format, query_dtype)
             : attention_shape(find_model_shape(name_or_path), row_format, query_dtype, project_at);
}

}  // namespace tributary
