// The shape of a pool's attention: heads, a latent row's parts and format, the type of queries.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/dtype.h"
#include "core/model/row_format.h"
#include "core/model/state_shape.h"

namespace tributary {

/// The part of the shape that a round's arithmetic needs; equal on all ranks of a pool.
struct AttentionShape {
  int heads = 0;
  int kv_lora_rank = 0;
  int qk_rope_head_dim = 0;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  float softmax_scale = 0;
  int topk = 0;  // rows that a query selects at most; 0: it attends to all

  [[nodiscard]] int latent_dim() const noexcept { return kv_lora_rank + qk_rope_head_dim; }
  [[nodiscard]] RowLayout row() const noexcept {
    return {row_format, kv_lora_rank, qk_rope_head_dim};
  }
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row().bytes(); }
  /// The absorbed query of all heads.
  [[nodiscard]] std::size_t query_bytes() const noexcept {
    return static_cast<std::size_t>(heads) * static_cast<std::size_t>(latent_dim()) *
           dtype_bytes(query_dtype);
  }
  /// The positions that a query selects, ascending, -1 behind the last.
  [[nodiscard]] std::size_t selected_bytes() const noexcept {
    return static_cast<std::size_t>(topk) * sizeof(std::int32_t);
  }
  /// Where they lie in a token record.
  [[nodiscard]] std::size_t selected_offset() const noexcept { return query_bytes() + row_bytes(); }
  /// A query, a new latent row, the query's selection.
  [[nodiscard]] std::size_t token_record_bytes() const noexcept {
    return selected_offset() + selected_bytes();
  }
  /// The shape of partial states, merged or on the wire.
  [[nodiscard]] StateShape state_shape() const noexcept { return {heads, kv_lora_rank}; }
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};

}  // namespace tributary
