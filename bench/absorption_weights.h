// Random weights and random cache contents for bench/absorption.
#pragma once

#include <cstddef>

#include "bench/absorption_math.h"
#include "core/model/model_shape.h"

namespace tributary::bench {

/// Weights of one layer, fp32, [out, in] as in y = W x. H heads, C kv_lora_rank, R rope, N nope,
/// V value dimension; a low-rank query.
class Weights {
 public:
  /// Random with standard deviation 1 / sqrt(in), the same for every form. `materialised`: only the
  /// weights of Form::kMaterialised; otherwise only those of the other forms.
  Weights(const ModelShape& shape, bool materialised, Arithmetic& arithmetic);

  [[nodiscard]] static std::size_t bytes_needed(const ModelShape& shape, bool materialised);
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  Array<float> down;       // [q_lora + C + R, hidden]
  Array<float> q_up;       // [H (N + R), q_lora]
  Array<float> k_up;       // [H N, C], W_UK
  Array<float> v_up;       // [H V, C], W_UV
  Array<float> out;        // [hidden, H V], W_O
  Array<float> q_to_c;     // materialised: [H C, q_lora], W_UQ W_UK
  Array<float> q_to_rope;  // materialised: [H R, q_lora]
  Array<float> c_to_out;   // materialised: [hidden, H C], W_UV W_O

 private:
  std::size_t bytes_ = 0;
};

/// Uniform over (-1, 1): the part of one random sequence that begins at `start`.
void fill_random(const Array<bf16>& array, std::int64_t start);

}  // namespace tributary::bench
