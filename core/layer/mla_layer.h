// One Multi-head Latent Attention layer on the device of its Backend: all of a step except the
// attention over the pool itself. Absorbed form for decode, MHA form for prefill (DeepSeek-V2,
// arXiv:2405.04434, section 2.1 and appendix C).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "core/interface/recorded_calls.h"
#include "core/layer/head_projection.h"
#include "core/layer/mla_workspace.h"
#include "core/model/layer_weights.h"
#include "core/model/model_shape.h"

namespace tributary {

/// Letters below: H heads, C kv_lora_rank, R qk_rope_head_dim, N qk_nope_head_dim, V v_head_dim;
/// a latent row is c_kv (C, after RMSNorm) then k_pe (R, after RoPE).
///
/// All float pointers are device memory of the layer's backend, dense and row-major; `positions`
/// are host memory, one per token, counted from 0. Calls are enqueued like the backend's own and
/// follow its threading rules; the workspace must not be in use by another thread. Arguments are
/// checked before anything is enqueued: Error(kInvalidArgument). `tokens` may be 0.
///
/// A token's results do not depend on the other tokens of a call nor on the workspace's
/// max_tokens, bit for bit, because Backend promises that of each of its operations.
class MlaLayer {
 public:
  /// Hands the weights to the backend; `weights` is not needed afterwards. Throws kInvalidArgument
  /// when a weight does not have the shape's size, or the workspace is of another backend or shape.
  MlaLayer(Backend& backend, const ModelShape& shape, const LayerWeights& weights,
           std::shared_ptr<MlaWorkspace> workspace);

  [[nodiscard]] const ModelShape& shape() const noexcept { return shape_; }

  /// Prefill rows: hidden [tokens, hidden_size] -> rows [tokens, C + R]. The whole first product is
  /// computed, although the query's share is not used: its weight exists once, and the rows have
  /// the bits that project() gives them.
  void latent_rows(std::int64_t tokens, const float* hidden,
                   std::span<const std::int64_t> positions, float* rows);

  /// Decode: hidden [tokens, hidden_size] -> absorbed queries [tokens, H, C + R] (q_nope W_UK, then
  /// the rotated rope part; unscaled) and the rows [tokens, C + R] of the same tokens.
  void project(std::int64_t tokens, const float* hidden, std::span<const std::int64_t> positions,
               float* queries, float* rows);

  /// Causal attention of one sequence's tokens at positions first_position, first_position + 1, ...
  /// in the MHA form: hidden [tokens, hidden_size] and the sequence's stored rows from position 0
  /// on, [keys, C + R] as fp32 after rounding to the cache's row type -> output
  /// [tokens, hidden_size], after o_proj. keys >= first_position + tokens. A prompt may be cut into
  /// calls anywhere without changing a bit. Throws kFailedPrecondition when the workspace was
  /// built without prefill.
  void prefill_attention(std::int64_t tokens, const float* hidden, std::int64_t first_position,
                         std::int64_t keys, const float* rows, float* output);

  /// Finished attention states, records of StateShape{H, C} -> W_UV per head -> o_proj -> output
  /// [tokens, hidden_size].
  void output(std::int64_t tokens, const float* states, float* output);

  [[nodiscard]] const HeadProjection& heads() const noexcept { return *heads_; }

 private:
  struct Query {
    const float* data;  // [tokens, H, N + R]
    std::int64_t token_stride;
  };

  // Each of these works on at most max_tokens tokens and the workspace; add_... append to calls_,
  // and the positions that they are given must outlive them there.
  void add_down(std::int64_t tokens, const float* hidden);
  void add_rows_from_down(std::span<const std::int64_t> positions, float* rows);
  Query add_query_from_down(std::int64_t tokens);
  void add_absorbed_queries(std::span<const std::int64_t> positions, float* queries);
  void add_plain_queries(std::span<const std::int64_t> positions, float* queries);
  [[nodiscard]] GemmArgs output_call(std::int64_t tokens, const float* values,
                                     std::int64_t token_stride, float* output) const;
  void prefill_states(std::int64_t tokens, std::int64_t first_position, const float* rows);

  Backend* backend_;
  ModelShape shape_;
  std::shared_ptr<MlaWorkspace> workspace_;
  float softmax_scale_;
  std::vector<double> frequencies_;  // [R / 2]
  RecordedCalls recorded_;           // project() and output()
  std::vector<Call> calls_;          // being made

  std::unique_ptr<Weight> down_;  // [q_a_proj | kv_a_proj] or [q_proj | kv_a_proj]
  std::unique_ptr<Weight> q_b_;   // null without a low-rank query
  std::unique_ptr<HeadProjection> heads_;
  std::unique_ptr<Weight> kv_b_;  // [H (N + V), C]; null without prefill
  std::unique_ptr<Weight> o_;     // [hidden_size, H V]
  std::unique_ptr<Buffer> q_norm_, kv_norm_;
};

}  // namespace tributary
