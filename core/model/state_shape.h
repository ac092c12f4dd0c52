// The layout of the partial states of one token in memory.
#pragma once

#include <cstddef>

namespace tributary {

/// Partial states of one token lie together in one record: `float o[heads][width]`, then
/// `float lse[heads]`. `o` is the softmax-weighted mean, `lse` the natural logarithm of the sum of
/// exp(scaled score); the empty set is o = 0, lse = -inf. An array of states is indexed by record.
struct StateShape {
  int heads = 0;
  int width = 0;  // kv_lora_rank, or v_head_dim

  [[nodiscard]] std::size_t record_floats() const noexcept {
    return static_cast<std::size_t>(heads) * (static_cast<std::size_t>(width) + 1);
  }
  [[nodiscard]] std::size_t record_bytes() const noexcept {
    return record_floats() * sizeof(float);
  }
  friend bool operator==(const StateShape&, const StateShape&) = default;
};

}  // namespace tributary
