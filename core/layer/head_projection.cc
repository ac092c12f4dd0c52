#include "core/layer/head_projection.h"

namespace tributary {

HeadProjection::HeadProjection(Backend& backend, const KvBShape& shape,
                               const std::vector<float>& kv_b_proj,
                               const std::vector<float>& scales)
    : shape_(shape),
      w_uk_(backend.make_weight(w_uk_view(kv_b_proj, scales, shape))),
      w_uv_(backend.make_weight(w_uv_view(kv_b_proj, scales, shape))) {}

void HeadProjection::add_absorbed(std::int64_t tokens, const float* queries, float* absorbed,
                                  std::vector<Call>& calls) const {
  const auto bytes = [](std::int64_t floats) {
    return static_cast<std::size_t>(floats) * sizeof(float);
  };
  const std::int64_t width = shape_.nope + shape_.rope;
  calls.emplace_back(absorb(tokens, queries, shape_.heads * width, absorbed));
  if (shape_.rope == 0) return;
  calls.emplace_back(ConvertArgs{.rows = tokens * shape_.heads,
                                 .src = queries + shape_.nope,
                                 .src_row = plain_row(shape_.rope),
                                 .src_stride_bytes = bytes(width),
                                 .dst = absorbed + shape_.latent,
                                 .dst_row = plain_row(shape_.rope),
                                 .dst_stride_bytes = bytes(shape_.latent + shape_.rope)});
}

void HeadProjection::add_projected(std::int64_t tokens, const float* states, float* projected,
                                   std::vector<Call>& calls) const {
  const auto record = [&](std::int64_t width) {
    return StateShape{.heads = static_cast<int>(shape_.heads), .width = static_cast<int>(width)};
  };
  const StateShape from = record(shape_.latent);
  const StateShape to = record(shape_.value);
  calls.emplace_back(
      values(tokens, states, projected, static_cast<std::int64_t>(to.record_floats())));
  calls.emplace_back(ConvertArgs{.rows = tokens,
                                 .src = states + shape_.heads * shape_.latent,
                                 .src_row = plain_row(shape_.heads),
                                 .src_stride_bytes = from.record_bytes(),
                                 .dst = projected + shape_.heads * shape_.value,
                                 .dst_row = plain_row(shape_.heads),
                                 .dst_stride_bytes = to.record_bytes()});
}

GemmArgs HeadProjection::absorb(std::int64_t tokens, const float* queries,
                                std::int64_t query_token_stride, float* absorbed) const {
  const std::int64_t width = shape_.latent + shape_.rope;
  return {.weight = w_uk_.get(),
          .tokens = tokens,
          .x = queries,
          .x_token_stride = query_token_stride,
          .x_batch_stride = shape_.nope + shape_.rope,
          .y = absorbed,
          .y_token_stride = shape_.heads * width,
          .y_batch_stride = width};
}

GemmArgs HeadProjection::values(std::int64_t tokens, const float* states, float* values,
                                std::int64_t value_token_stride) const {
  return {.weight = w_uv_.get(),
          .tokens = tokens,
          .x = states,
          .x_token_stride = shape_.heads * (shape_.latent + 1),
          .x_batch_stride = shape_.latent,
          .y = values,
          .y_token_stride = value_token_stride,
          .y_batch_stride = shape_.value};
}

}  // namespace tributary
