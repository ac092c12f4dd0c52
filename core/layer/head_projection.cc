#include "core/layer/head_projection.h"

namespace tributary {

HeadProjection::HeadProjection(Backend& backend, const KvBShape& shape,
                               const std::vector<float>& kv_b_proj,
                               const std::vector<float>& scales)
    : shape_(shape),
      w_uk_(backend.make_weight(w_uk_view(kv_b_proj, scales, shape))),
      w_uv_(backend.make_weight(w_uv_view(kv_b_proj, scales, shape))) {}

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
