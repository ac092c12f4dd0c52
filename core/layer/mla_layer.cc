// The MLA layer as a sequence of backend operations.
#include "core/layer/mla_layer.h"

#include <numeric>
#include <utility>

#include "core/base/error.h"
#include "core/layer/check_weights.h"
#include "core/layer/token_chunks.h"
#include "core/layer/weight_views.h"
#include "core/model/rope.h"

namespace tributary {
namespace {

/// The number of batches, by size, that a layer's decode remembers: of project() and of output().
constexpr std::size_t kRecordings = 16;

std::unique_ptr<Buffer> upload_vector(Backend& backend, const std::vector<float>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  auto buffer = backend.allocate(bytes.size());
  backend.upload(buffer->data(), bytes);
  return buffer;
}

}  // namespace

MlaLayer::MlaLayer(Backend& backend, const ModelShape& shape, const LayerWeights& weights,
                   std::shared_ptr<MlaWorkspace> workspace)
    : backend_(&backend),
      shape_(shape),
      workspace_(std::move(workspace)),
      softmax_scale_(static_cast<float>(shape.softmax_scale())),
      frequencies_(rope_frequencies(shape.rope, shape.qk_rope_head_dim)),
      recorded_(backend, kRecordings) {
  check_layer_weights(shape, weights);
  if (!workspace_ || &workspace_->backend() != &backend) {
    fail(ErrorCode::kInvalidArgument, "MLA layer: the workspace belongs to another backend");
  }
  const std::int64_t heads = shape.num_attention_heads;
  const std::int64_t latent = shape.kv_lora_rank;
  const std::int64_t nope = shape.qk_nope_head_dim;
  const std::int64_t value = shape.v_head_dim;
  const ModelShape& built = workspace_->shape();
  if (built.num_attention_heads != heads || built.q_lora_rank != shape.q_lora_rank ||
      built.kv_lora_rank != latent || built.qk_nope_head_dim != nope ||
      built.qk_rope_head_dim != shape.qk_rope_head_dim || built.v_head_dim != value) {
    fail(ErrorCode::kInvalidArgument,
         "MLA layer: the workspace was built for another shape ({} heads, kv_lora_rank {})",
         built.num_attention_heads, built.kv_lora_rank);
  }

  const bool low_rank = shape.q_lora_rank > 0;
  const std::int64_t hidden = shape.hidden_size;
  const LayerScales& scales = weights.scales;
  {
    std::vector<float> rows = low_rank ? weights.q_a_proj : weights.q_proj;
    rows.insert(rows.end(), weights.kv_a_proj.begin(), weights.kv_a_proj.end());
    const std::vector<float> row_scales =
        joined_scales(low_rank ? scales.q_a_proj : scales.q_proj, workspace_->down_query_rows(),
                      scales.kv_a_proj);
    down_ = backend.make_weight(matrix(rows, row_scales, workspace_->down_rows(), hidden));
  }
  if (low_rank) {
    q_b_ = backend.make_weight(
        matrix(weights.q_b_proj, scales.q_b_proj, heads * shape.qk_head_dim(), shape.q_lora_rank));
    q_norm_ = upload_vector(backend, weights.q_a_layernorm);
  }
  kv_norm_ = upload_vector(backend, weights.kv_a_layernorm);

  heads_ = std::make_unique<HeadProjection>(backend,
                                            KvBShape{.heads = heads,
                                                     .nope = nope,
                                                     .rope = shape.qk_rope_head_dim,
                                                     .value = value,
                                                     .latent = latent},
                                            weights.kv_b_proj, scales.kv_b_proj);
  if (workspace_->prefill()) {
    kv_b_ = backend.make_weight(
        matrix(weights.kv_b_proj, scales.kv_b_proj, heads * (nope + value), latent));
  }
  o_ = backend.make_weight(matrix(weights.o_proj, scales.o_proj, hidden, heads * value));
}

void MlaLayer::add_down(std::int64_t tokens, const float* hidden) {
  calls_.emplace_back(GemmArgs{.weight = down_.get(),
                               .tokens = tokens,
                               .x = hidden,
                               .x_token_stride = shape_.hidden_size,
                               .y = workspace_->down(),
                               .y_token_stride = workspace_->down_rows()});
}

void MlaLayer::add_rows_from_down(std::span<const std::int64_t> positions, float* rows) {
  const std::int64_t latent_dim = shape_.latent_dim();
  const float* kv_a = workspace_->down() + workspace_->down_query_rows();
  calls_.emplace_back(LatentRowsArgs{.norm = {.tokens = static_cast<std::int64_t>(positions.size()),
                                              .width = shape_.kv_lora_rank,
                                              .x = kv_a,
                                              .x_token_stride = workspace_->down_rows(),
                                              .weight = kv_norm_->as<float>(),
                                              .eps = static_cast<float>(shape_.latent_norm_eps),
                                              .y = rows,
                                              .y_token_stride = latent_dim},
                                     .rope = {.positions = positions,
                                              .frequencies = frequencies_,
                                              .heads = 1,
                                              .x = kv_a + shape_.kv_lora_rank,
                                              .x_token_stride = workspace_->down_rows(),
                                              .x_head_stride = shape_.qk_rope_head_dim,
                                              .y = rows + shape_.kv_lora_rank,
                                              .y_token_stride = latent_dim,
                                              .y_head_stride = shape_.qk_rope_head_dim}});
}

MlaLayer::Query MlaLayer::add_query_from_down(std::int64_t tokens) {
  const std::int64_t stride = workspace_->down_rows();
  if (!q_b_) return {workspace_->down(), stride};
  const std::int64_t width = std::int64_t{shape_.num_attention_heads} * shape_.qk_head_dim();
  calls_.emplace_back(RmsNormArgs{.tokens = tokens,
                                  .width = shape_.q_lora_rank,
                                  .x = workspace_->down(),
                                  .x_token_stride = stride,
                                  .weight = q_norm_->as<float>(),
                                  .eps = static_cast<float>(shape_.latent_norm_eps),
                                  .y = workspace_->down(),
                                  .y_token_stride = stride});
  calls_.emplace_back(GemmArgs{.weight = q_b_.get(),
                               .tokens = tokens,
                               .x = workspace_->down(),
                               .x_token_stride = stride,
                               .y = workspace_->query(),
                               .y_token_stride = width});
  return {workspace_->query(), width};
}

void MlaLayer::latent_rows(std::int64_t tokens, const float* hidden,
                           std::span<const std::int64_t> positions, float* rows) {
  check_positions("latent_rows", tokens, positions);
  for_chunks(tokens, workspace_->max_tokens(), [&](std::int64_t begin, std::int64_t count) {
    calls_.clear();
    add_down(count, hidden + begin * shape_.hidden_size);
    add_rows_from_down(part(positions, begin, count), rows + begin * shape_.latent_dim());
    backend_->call(calls_);
  });
}

void MlaLayer::add_absorbed_queries(std::span<const std::int64_t> positions, float* queries) {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const std::int64_t heads = shape_.num_attention_heads;
  const std::int64_t latent_dim = shape_.latent_dim();
  const std::int64_t head_dim = shape_.qk_head_dim();
  const Query query = add_query_from_down(tokens);
  calls_.emplace_back(heads_->absorb(tokens, query.data, query.token_stride, queries));
  calls_.emplace_back(RopeArgs{.positions = positions,
                               .frequencies = frequencies_,
                               .heads = heads,
                               .x = query.data + shape_.qk_nope_head_dim,
                               .x_token_stride = query.token_stride,
                               .x_head_stride = head_dim,
                               .y = queries + shape_.kv_lora_rank,
                               .y_token_stride = heads * latent_dim,
                               .y_head_stride = latent_dim});
}

/// Dense queries [tokens, H, N + R], their last part rotated.
void MlaLayer::add_plain_queries(std::span<const std::int64_t> positions, float* queries) {
  const auto tokens = static_cast<std::int64_t>(positions.size());
  const std::int64_t heads = shape_.num_attention_heads;
  const std::int64_t head_dim = shape_.qk_head_dim();
  const std::int64_t width = heads * head_dim;
  const Query query = add_query_from_down(tokens);
  if (query.data != queries) {
    calls_.emplace_back(
        ConvertArgs{.rows = tokens,
                    .src = query.data,
                    .src_row = plain_row(width),
                    .src_stride_bytes = static_cast<std::size_t>(query.token_stride) * 4,
                    .dst = queries,
                    .dst_row = plain_row(width),
                    .dst_stride_bytes = static_cast<std::size_t>(width) * 4});
  }
  float* rope_part = queries + shape_.qk_nope_head_dim;
  calls_.emplace_back(RopeArgs{.positions = positions,
                               .frequencies = frequencies_,
                               .heads = heads,
                               .x = rope_part,
                               .x_token_stride = width,
                               .x_head_stride = head_dim,
                               .y = rope_part,
                               .y_token_stride = width,
                               .y_head_stride = head_dim});
}

void MlaLayer::project(std::int64_t tokens, const float* hidden,
                       std::span<const std::int64_t> positions, float* queries, float* rows) {
  check_positions("project", tokens, positions);
  const std::int64_t query_width = std::int64_t{shape_.num_attention_heads} * shape_.latent_dim();
  for_chunks(tokens, workspace_->max_tokens(), [&](std::int64_t begin, std::int64_t count) {
    const auto chunk_positions = part(positions, begin, count);
    calls_.clear();
    add_down(count, hidden + begin * shape_.hidden_size);
    add_rows_from_down(chunk_positions, rows + begin * shape_.latent_dim());
    add_absorbed_queries(chunk_positions, queries + begin * query_width);
    recorded_.run(calls_);
  });
}

void MlaLayer::prefill_states(std::int64_t tokens, std::int64_t first_position, const float* rows) {
  const std::int64_t heads = shape_.num_attention_heads;
  const std::int64_t latent_dim = shape_.latent_dim();
  const StateShape state{.heads = shape_.num_attention_heads, .width = shape_.v_head_dim};
  const auto row_bytes = static_cast<std::size_t>(latent_dim) * sizeof(float);
  const auto rope_bytes = static_cast<std::size_t>(shape_.qk_rope_head_dim) * sizeof(float);
  // States of chunk 0 start the fold in the first half of the records. Each later chunk's states go
  // to the second half and are merged in, left to right. Keys after the last token are not read.
  const std::int64_t visible = first_position + tokens;
  for_chunks(visible, kPrefillKeyChunk, [&](std::int64_t key, std::int64_t count) {
    const float* chunk_rows = rows + key * latent_dim;
    backend_->call(
        GemmArgs{.weight = kv_b_.get(),
                 .tokens = count,
                 .x = chunk_rows,
                 .x_token_stride = latent_dim,
                 .y = workspace_->kv(),
                 .y_token_stride = heads * (shape_.qk_nope_head_dim + shape_.v_head_dim)});
    backend_->call(ConvertArgs{.rows = count,
                               .src = chunk_rows + shape_.kv_lora_rank,
                               .src_row = plain_row(shape_.qk_rope_head_dim),
                               .src_stride_bytes = row_bytes,
                               .dst = workspace_->key_rope(),
                               .dst_row = plain_row(shape_.qk_rope_head_dim),
                               .dst_stride_bytes = rope_bytes});
    const std::int64_t first_record = key == 0 ? 0 : workspace_->max_tokens();
    backend_->call(
        DenseAttendArgs{.tokens = tokens,
                        .keys = count,
                        .heads = shape_.num_attention_heads,
                        .qk_nope_head_dim = shape_.qk_nope_head_dim,
                        .qk_rope_head_dim = shape_.qk_rope_head_dim,
                        .v_head_dim = shape_.v_head_dim,
                        .query_position = first_position,
                        .key_position = key,
                        .softmax_scale = softmax_scale_,
                        .q = workspace_->query(),
                        .kv = workspace_->kv(),
                        .k_pe = workspace_->key_rope(),
                        .states = workspace_->states() +
                                  first_record * static_cast<std::int64_t>(state.record_floats())});
    if (key > 0) {
      const MergeOp op{
          .dst = 0, .left = 0, .right = first_record, .tokens = static_cast<std::int32_t>(tokens)};
      backend_->call(MergeArgs{.ops = {&op, 1}, .shape = state, .states = workspace_->states()});
    }
  });
}

void MlaLayer::prefill_attention(std::int64_t tokens, const float* hidden,
                                 std::int64_t first_position, std::int64_t keys, const float* rows,
                                 float* output) {
  check_tokens("prefill_attention", tokens);
  if (first_position < 0) {
    fail(ErrorCode::kInvalidArgument, "prefill_attention: first position {}, must be at least 0",
         first_position);
  }
  if (keys - first_position < tokens) {
    fail(ErrorCode::kInvalidArgument,
         "prefill_attention: {} stored rows for tokens at positions {} to {}", keys, first_position,
         first_position + tokens - 1);
  }
  if (!kv_b_) {
    fail(ErrorCode::kFailedPrecondition,
         "prefill_attention: the layer's workspace was built without prefill");
  }
  const StateShape state{.heads = shape_.num_attention_heads, .width = shape_.v_head_dim};
  for_chunks(tokens, workspace_->max_tokens(), [&](std::int64_t begin, std::int64_t count) {
    std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
    std::iota(positions.begin(), positions.end(), first_position + begin);
    calls_.clear();
    add_down(count, hidden + begin * shape_.hidden_size);
    add_plain_queries(positions, workspace_->query());
    backend_->call(calls_);
    prefill_states(count, first_position + begin, rows);
    backend_->call(output_call(count, workspace_->states(),
                               static_cast<std::int64_t>(state.record_floats()),
                               output + begin * shape_.hidden_size));
  });
}

GemmArgs MlaLayer::output_call(std::int64_t tokens, const float* values, std::int64_t token_stride,
                               float* output) const {
  return {.weight = o_.get(),
          .tokens = tokens,
          .x = values,
          .x_token_stride = token_stride,
          .y = output,
          .y_token_stride = shape_.hidden_size};
}

void MlaLayer::output(std::int64_t tokens, const float* states, float* output) {
  check_tokens("output", tokens);
  const StateShape state{.heads = shape_.num_attention_heads, .width = shape_.kv_lora_rank};
  const std::int64_t values = std::int64_t{state.heads} * shape_.v_head_dim;
  const auto record = static_cast<std::int64_t>(state.record_floats());
  for_chunks(tokens, workspace_->max_tokens(), [&](std::int64_t begin, std::int64_t count) {
    calls_.clear();
    calls_.emplace_back(
        heads_->values(count, states + begin * record, workspace_->value(), values));
    calls_.emplace_back(
        output_call(count, workspace_->value(), values, output + begin * shape_.hidden_size));
    recorded_.run(calls_);
  });
}

}  // namespace tributary
