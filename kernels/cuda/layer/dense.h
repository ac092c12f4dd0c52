// Kernel of DenseAttendArgs: simple and correct rather than fast, since this tier is not made for
// prefill.
#pragma once

#include "core/interface/visible_rows.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/attend/unit.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {

inline constexpr unsigned kDenseThreads = 128;
/// Keys whose scores a block holds at once: one per thread.
inline constexpr int kDenseKeys = kDenseThreads;
inline constexpr std::uint32_t kDenseSharedBytes = kDenseKeys * sizeof(float);

TRIBUTARY_DEVICE std::uint32_t score_at(std::uint32_t scores, int key) {
  return scores + static_cast<std::uint32_t>(key) * static_cast<std::uint32_t>(sizeof(float));
}

TRIBUTARY_DEVICE float dense_score(const DenseAttendArgs& d, const float* q, std::int64_t head,
                                   std::int64_t key) {
  const int nope = d.qk_nope_head_dim;
  const float* k = d.kv + (key * d.heads + head) * (nope + d.v_head_dim);
  const float* k_pe = d.k_pe + key * d.qk_rope_head_dim;
  float score = 0;
  for (int i = 0; i < nope; ++i) score = ptx::multiply_add(q[i], k[i], score);
  for (int i = 0; i < d.qk_rope_head_dim; ++i) {
    score = ptx::multiply_add(q[nope + i], k_pe[i], score);
  }
  return ptx::multiply(score, d.softmax_scale);
}

/// Block (token, head). Keys are processed in chunks that start at the call's first key, with
/// online softmax. Keys that a token does not see are not touched, as if they were absent. Outputs
/// stay in the state until the end: a thread reads and writes only its own elements. Every thread
/// computes the same maximum and sum, in the same order.
TRIBUTARY_DEVICE void attend_dense_block(const DenseAttendArgs& d) {
  const std::uint32_t scores = ptx::shared_memory();
  const int thread = static_cast<int>(ptx::thread());
  const auto token = static_cast<std::int64_t>(ptx::block());
  const auto head = static_cast<std::int64_t>(ptx::block_y());
  const std::int64_t kv_width = d.qk_nope_head_dim + d.v_head_dim;
  const float* q = d.q + (token * d.heads + head) * (d.qk_nope_head_dim + d.qk_rope_head_dim);
  float* state = d.states + token * d.heads * (static_cast<std::int64_t>(d.v_head_dim) + 1);
  float* o = state + head * d.v_head_dim;
  const std::int64_t visible = visible_rows(d.query_position + token, d.key_position, d.keys);
  float largest = kNothing;
  float sum = 0;
  for (std::int64_t first = 0; first < visible; first += kDenseKeys) {
    const int count = static_cast<int>(visible - first < kDenseKeys ? visible - first : kDenseKeys);
    if (thread < count) {
      ptx::store_shared(score_at(scores, thread), dense_score(d, q, head, first + thread));
    }
    ptx::sync_block();
    float maximum = largest;
    for (int i = 0; i < count; ++i) {
      maximum = ptx::larger(maximum, ptx::load_shared(score_at(scores, i)));
    }
    ptx::sync_block();
    if (thread < count) {
      const float score = ptx::load_shared(score_at(scores, thread));
      ptx::store_shared(score_at(scores, thread), ptx::exp(ptx::subtract(score, maximum)));
    }
    ptx::sync_block();
    const float keep = largest == kNothing ? 0.0F : ptx::exp(ptx::subtract(largest, maximum));
    float weights = 0;
    for (int i = 0; i < count; ++i) {
      weights = ptx::add(weights, ptx::load_shared(score_at(scores, i)));
    }
    sum = ptx::multiply_add(sum, keep, weights);
    for (int v = thread; v < d.v_head_dim; v += static_cast<int>(kDenseThreads)) {
      const float* values = d.kv + (first * d.heads + head) * kv_width + d.qk_nope_head_dim + v;
      float value = 0;
      for (int i = 0; i < count; ++i) {
        value = ptx::multiply_add(ptx::load_shared(score_at(scores, i)),
                                  values[i * d.heads * kv_width], value);
      }
      o[v] = first == 0 ? value : ptx::multiply_add(o[v], keep, value);
    }
    largest = maximum;
    ptx::sync_block();
  }
  for (int v = thread; v < d.v_head_dim; v += static_cast<int>(kDenseThreads)) {
    o[v] = visible == 0 ? 0.0F : ptx::divide(o[v], sum);
  }
  if (thread == 0) {
    state[static_cast<std::int64_t>(d.heads) * d.v_head_dim + head] =
        visible == 0 ? kNothing : ptx::add(largest, ptx::log(sum));
  }
}

}  // namespace tributary::cuda
