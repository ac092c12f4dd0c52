// ReferenceAttention in one call, over rows that lie in memory.
#pragma once

#include <span>

#include "core/reference/reference_attend.h"

namespace tributary {

/// The state of `query` over `rows` [n, kv_lora_rank + rope_dim], of floats or doubles.
template <typename Rows>
[[nodiscard]] ReferenceState reference_attend(int heads, int kv_lora_rank, int rope_dim,
                                              double softmax_scale, std::span<const double> query,
                                              const Rows& rows) {
  ReferenceAttention attention(heads, kv_lora_rank, rope_dim, softmax_scale, query);
  attention.add(std::span(rows));
  return attention.state();
}

}  // namespace tributary
