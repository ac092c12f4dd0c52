// The shape of a pool's attention: heads, a latent row's parts and format, the types of queries
// and of partial states that travel.
#pragma once

#include <cstddef>

#include "core/base/dtype.h"
#include "core/model/project_at.h"
#include "core/model/row_format.h"
#include "core/model/state_shape.h"

namespace tributary {

/// What a round's arithmetic needs to know; equal on all ranks of a pool.
struct AttentionShape {
  int heads = 0;
  int kv_lora_rank = 0;
  int qk_rope_head_dim = 0;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  float softmax_scale = 0;
  ProjectAt project_at = ProjectAt::kHome;
  int qk_nope_head_dim = 0;  // of queries before W_UK; 0 where they arrive absorbed, at `home`
  int v_head_dim = 0;        // 0: the pool has no weights to project with
  /// Of `o` of the partial states that travel between workers; states are computed and merged in
  /// fp32, and lse travels so. With bf16 bits depend on placement: a state that stays where its
  /// home is was never rounded.
  DType state_dtype = DType::kF32;

  [[nodiscard]] bool projects_leaves() const noexcept { return project_at == ProjectAt::kLeaves; }
  [[nodiscard]] int latent_dim() const noexcept { return kv_lora_rank + qk_rope_head_dim; }
  [[nodiscard]] RowLayout row() const noexcept {
    return {row_format, kv_lora_rank, qk_rope_head_dim};
  }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row().bytes(); }
  /// Of a head's query as clients give it and as it travels: before W_UK, or absorbed.
  [[nodiscard]] int query_width() const noexcept {
    return projects_leaves() ? qk_nope_head_dim + qk_rope_head_dim : latent_dim();
  }
  [[nodiscard]] std::size_t query_bytes() const noexcept {
    return static_cast<std::size_t>(heads) * static_cast<std::size_t>(query_width()) *
           dtype_bytes(query_dtype);
  }
  /// A query and a new latent row.
  [[nodiscard]] std::size_t token_record_bytes() const noexcept {
    return query_bytes() + row_bytes();
  }
  /// Of partial states as they are merged and travel, and of the merged ones.
  [[nodiscard]] StateShape state_shape() const noexcept {
    return {heads, projects_leaves() ? v_head_dim : kv_lora_rank};
  }
  [[nodiscard]] bool rounds_states() const noexcept { return state_dtype != DType::kF32; }
  /// Of the partial states of one token as they travel: a record of state_shape(), or where they
  /// are rounded fp32 lse[heads], then o[heads][width], then nothing up to whole floats.
  [[nodiscard]] std::size_t sent_state_bytes() const noexcept {
    const StateShape state = state_shape();
    if (!rounds_states()) return state.record_bytes();
    const std::size_t bytes = sent_lse_bytes() + static_cast<std::size_t>(state.heads) *
                                                     static_cast<std::size_t>(state.width) *
                                                     dtype_bytes(state_dtype);
    return (bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float);
  }
  /// Of it, where states are rounded: what is in front of o.
  [[nodiscard]] std::size_t sent_lse_bytes() const noexcept {
    return static_cast<std::size_t>(heads) * sizeof(float);
  }
  /// By how much of itself a value of o is changed by travelling, at most: bf16 has 8 bits. Values
  /// below 2^-126 lose at most 2^-134; above 3.38e38 they become infinite.
  [[nodiscard]] double state_roundoff() const noexcept { return rounds_states() ? 0x1p-8 : 0; }
  /// Of what attention makes of a leaf.
  [[nodiscard]] StateShape leaf_state_shape() const noexcept { return {heads, kv_lora_rank}; }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

}  // namespace tributary
