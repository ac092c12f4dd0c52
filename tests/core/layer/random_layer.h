// A layer of any shape with random weights, and random hidden states.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "core/model/layer_weights.h"
#include "core/model/mla_shape.h"
#include "core/model/model_shape.h"

namespace tributary::test {

inline std::vector<float> random_floats(std::int64_t count, double deviation, unsigned seed,
                                        double mean = 0) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(normal(generator));
  return values;
}

/// Odd sizes on purpose: no dimension but the rope part is a multiple of a vector register.
inline ModelShape odd_shape(int q_lora_rank) {
  ModelShape shape = find_model_shape("deepseek-v3");
  shape.name = "odd";
  shape.hidden_size = 77;
  shape.num_attention_heads = 3;
  shape.q_lora_rank = q_lora_rank;
  shape.kv_lora_rank = 45;
  shape.qk_nope_head_dim = 23;
  shape.qk_rope_head_dim = 10;
  shape.v_head_dim = 29;
  return shape;
}

/// Matrices normal with deviation 1 / sqrt(fan_in), norm weights 1 + 0.1 normal.
inline LayerWeights random_weights(const ModelShape& shape, unsigned seed) {
  const std::int64_t heads = shape.num_attention_heads;
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    return random_floats(rows * cols, 1 / std::sqrt(static_cast<double>(cols)), ++seed);
  };
  const auto norm = [&](std::int64_t width) { return random_floats(width, 0.1, ++seed, 1); };
  LayerWeights weights;
  if (shape.q_lora_rank == 0) {
    weights.q_proj = matrix(heads * shape.qk_head_dim(), shape.hidden_size);
  } else {
    weights.q_a_proj = matrix(shape.q_lora_rank, shape.hidden_size);
    weights.q_a_layernorm = norm(shape.q_lora_rank);
    weights.q_b_proj = matrix(heads * shape.qk_head_dim(), shape.q_lora_rank);
  }
  weights.kv_a_proj = matrix(shape.latent_dim(), shape.hidden_size);
  weights.kv_a_layernorm = norm(shape.kv_lora_rank);
  weights.kv_b_proj =
      matrix(heads * (shape.qk_nope_head_dim + shape.v_head_dim), shape.kv_lora_rank);
  weights.o_proj = matrix(shape.hidden_size, heads * shape.v_head_dim);
  return weights;
}

inline std::vector<std::int64_t> positions_from(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(count));
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

}  // namespace tributary::test
