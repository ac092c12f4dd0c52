// Sizes of the workspace's buffers.
#include "core/layer/mla_workspace.h"

#include "core/base/error.h"

namespace tributary {
namespace {

constexpr int kMaxWorkspaceTokens = 65536;

}  // namespace

MlaWorkspace::MlaWorkspace(Backend& backend, const ModelShape& shape,
                           const MlaWorkspaceOptions& options)
    : backend_(&backend), shape_(shape), options_(options) {
  validate(shape);
  if (options.max_tokens < 1 || options.max_tokens > kMaxWorkspaceTokens) {
    fail(ErrorCode::kInvalidArgument, "max_tokens {} of an MLA workspace: must be 1 to {}",
         options.max_tokens, kMaxWorkspaceTokens);
  }
  const std::int64_t tokens = options.max_tokens;
  const std::int64_t heads = shape.num_attention_heads;
  down_ = allocate(tokens * down_rows());
  query_ = allocate(tokens * heads * shape.qk_head_dim());
  value_ = allocate(tokens * heads * shape.v_head_dim);
  if (options.prefill) {
    kv_ = allocate(kPrefillKeyChunk * heads * (shape.qk_nope_head_dim + shape.v_head_dim));
    key_rope_ = allocate(std::int64_t{kPrefillKeyChunk} * shape.qk_rope_head_dim);
    states_ = allocate(2 * tokens * heads * (shape.v_head_dim + 1));
  }
}

std::int64_t MlaWorkspace::down_query_rows() const noexcept {
  return shape_.q_lora_rank > 0
             ? shape_.q_lora_rank
             : static_cast<std::int64_t>(shape_.num_attention_heads) * shape_.qk_head_dim();
}

std::int64_t MlaWorkspace::down_rows() const noexcept {
  return down_query_rows() + shape_.latent_dim();
}

std::unique_ptr<Buffer> MlaWorkspace::allocate(std::int64_t floats) {
  const std::size_t size = static_cast<std::size_t>(floats) * sizeof(float);
  bytes_ += size;
  return backend_->allocate(size);
}

}  // namespace tributary
