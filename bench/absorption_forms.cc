// What each form stores, and its projections.
#include "bench/absorption_forms.h"

#include <algorithm>

#include "core/base/deadline.h"

namespace tributary::bench {
namespace {

using Clock = Deadline::Clock;

}  // namespace

Decoder::Memory Decoder::memory_needed(Form form, const ModelShape& shape, std::int64_t batch,
                                       std::int64_t length) {
  const std::int64_t heads = shape.num_attention_heads;
  const std::int64_t latent = shape.latent_dim();
  const std::int64_t query = heads * shape.qk_head_dim();
  const std::int64_t value = heads * shape.v_head_dim;
  const std::int64_t wide_value = heads * shape.kv_lora_rank;
  const std::int64_t row = form == Form::kDecompressed ? query + value : latent;
  std::int64_t floats = batch * (shape.q_lora_rank + latent) + heads * length;
  std::int64_t halves = 0;
  switch (form) {
    case Form::kDecompressed:
      floats +=
          batch * (query + value) + heads * std::max(shape.qk_nope_head_dim, shape.v_head_dim);
      break;
    case Form::kCompressed:
      floats +=
          batch * (query + value) +
          kDecompressChunk * (latent + heads * std::max(shape.qk_nope_head_dim, shape.v_head_dim));
      break;
    case Form::kAbsorbedConcatenated:
      floats += batch * heads * latent;
      halves += batch * length * latent;
      [[fallthrough]];
    case Form::kAbsorbedAdded:
      floats += batch * (query + value + 2 * wide_value) + length * latent;
      break;
    case Form::kMaterialised:
      floats += batch * (2 * wide_value + heads * shape.qk_rope_head_dim) + length * latent;
      break;
  }
  return {.cache_bytes = static_cast<std::size_t>(batch * length * row) * sizeof(bf16),
          .workspace_bytes = static_cast<std::size_t>(floats) * sizeof(float) +
                             static_cast<std::size_t>(halves) * sizeof(bf16)};
}

Decoder::Decoder(Form form, const ModelShape& shape, const Weights& weights, std::int64_t batch,
                 std::int64_t length, Arithmetic& arithmetic)
    : form_(form),
      weights_(&weights),
      arithmetic_(&arithmetic),
      hidden_(shape.hidden_size),
      heads_(shape.num_attention_heads),
      q_rank_(shape.q_lora_rank),
      rank_(shape.kv_lora_rank),
      nope_(shape.qk_nope_head_dim),
      rope_(shape.qk_rope_head_dim),
      value_(shape.v_head_dim),
      scale_(static_cast<float>(shape.softmax_scale())),
      batch_(batch),
      length_(length) {
  const auto floats = [&](std::int64_t count) {
    return Array<float>(count, memory_.workspace_bytes);
  };
  const auto cache = [&](std::int64_t row) {
    return Array<bf16>(batch * length * row, memory_.cache_bytes);
  };
  down_ = floats(batch * (q_rank_ + rank_ + rope_));
  scores_ = floats(heads_ * length);
  if (form == Form::kDecompressed) {
    keys_ = cache(heads_ * (nope_ + rope_));
    values_ = cache(heads_ * value_);
    up_ = floats(heads_ * std::max(nope_, value_));
  } else {
    c_kv_ = cache(rank_);
    k_pe_ = cache(rope_);
  }
  if (form == Form::kMaterialised) {
    q_rope_ = floats(batch * heads_ * rope_);
  } else {
    query_ = floats(batch * heads_ * (nope_ + rope_));
    head_out_ = floats(batch * heads_ * value_);
  }
  if (form == Form::kCompressed) {
    rows_ = floats(kDecompressChunk * (rank_ + rope_));
    up_ = floats(kDecompressChunk * heads_ * std::max(nope_, value_));
  }
  if (absorbed()) {
    q_c_ = floats(batch * heads_ * rank_);
    latent_ = floats(batch * heads_ * rank_);
    rows_ = floats(length * (rank_ + rope_));
  }
  if (form == Form::kAbsorbedConcatenated) {
    q_joined_ = floats(batch * heads_ * (rank_ + rope_));
    joined_ = Array<bf16>(batch * length * (rank_ + rope_), memory_.workspace_bytes);
  }
}

void Decoder::fill() {
  std::int64_t start = 0;
  for (const Array<bf16>* array : {&keys_, &values_, &c_kv_, &k_pe_}) {
    if (array->count() > 0) fill_random(*array, start += 104729);
  }
}

void Decoder::linear(const Array<float>& weight, std::int64_t rows, std::int64_t cols,
                     const float* x, std::int64_t x_stride, float* y) {
  arithmetic_->product({.m = batch_,
                        .n = rows,
                        .k = cols,
                        .a = x,
                        .lda = x_stride,
                        .b = weight.data(),
                        .ldb = cols,
                        .transpose_b = true,
                        .c = y,
                        .ldc = rows});
}

void Decoder::store(std::int64_t sequence, std::int64_t position, const float* row) {
  const std::int64_t at = sequence * length_ + position;
  if (form_ != Form::kDecompressed) {
    std::transform(row, row + rank_, c_kv_.data() + at * rank_, to_bf16);
    std::transform(row + rank_, row + rank_ + rope_, k_pe_.data() + at * rope_, to_bf16);
    return;
  }
  bf16* keys = keys_.data() + at * heads_ * (nope_ + rope_);
  arithmetic_->product({.m = 1,
                        .n = heads_ * nope_,
                        .k = rank_,
                        .a = row,
                        .lda = rank_,
                        .b = weights_->k_up.data(),
                        .ldb = rank_,
                        .transpose_b = true,
                        .c = up_.data(),
                        .ldc = heads_ * nope_});
  for (std::int64_t h = 0; h < heads_; ++h, keys += nope_ + rope_) {
    std::transform(up_.data() + h * nope_, up_.data() + (h + 1) * nope_, keys, to_bf16);
    std::transform(row + rank_, row + rank_ + rope_, keys + nope_, to_bf16);
  }
  arithmetic_->product({.m = 1,
                        .n = heads_ * value_,
                        .k = rank_,
                        .a = row,
                        .lda = rank_,
                        .b = weights_->v_up.data(),
                        .ldb = rank_,
                        .transpose_b = true,
                        .c = up_.data(),
                        .ldc = heads_ * value_});
  std::transform(up_.data(), up_.data() + heads_ * value_, values_.data() + at * heads_ * value_,
                 to_bf16);
}

StepCost Decoder::step(const float* hidden, float* output) {
  StepCost cost;
  const std::int64_t flop_before = arithmetic_->flop();
  const auto begin = Clock::now();
  linear(weights_->down, q_rank_ + rank_ + rope_, hidden_, hidden, hidden_, down_.data());
  project();
  cost.project_seconds = seconds_since(begin);
  const std::int64_t flop_projected = arithmetic_->flop();
  const auto attend_begin = Clock::now();
  attend();
  cost.attend_seconds = seconds_since(attend_begin);
  cost.attend_flop = arithmetic_->flop() - flop_projected;
  const auto finish_begin = Clock::now();
  finish(output);
  cost.project_seconds += seconds_since(finish_begin);
  cost.project_flop = arithmetic_->flop() - flop_before - cost.attend_flop;
  return cost;
}

void Decoder::project() {
  const std::int64_t down_dim = q_rank_ + rank_ + rope_;
  const std::int64_t head_dim = nope_ + rope_;
  for (std::int64_t s = 0; s < batch_; ++s) {
    store(s, length_ - 1, down_.data() + s * down_dim + q_rank_);
  }
  if (form_ == Form::kMaterialised) {
    linear(weights_->q_to_c, heads_ * rank_, q_rank_, down_.data(), down_dim, q_c_.data());
    linear(weights_->q_to_rope, heads_ * rope_, q_rank_, down_.data(), down_dim, q_rope_.data());
    return;
  }
  linear(weights_->q_up, heads_ * head_dim, q_rank_, down_.data(), down_dim, query_.data());
  if (!absorbed()) return;
  for (std::int64_t h = 0; h < heads_; ++h) {
    arithmetic_->product({.m = batch_,
                          .n = rank_,
                          .k = nope_,
                          .a = query_.data() + h * head_dim,
                          .lda = heads_ * head_dim,
                          .b = weights_->k_up.data() + h * nope_ * rank_,
                          .ldb = rank_,
                          .c = q_c_.data() + h * rank_,
                          .ldc = heads_ * rank_});
  }
}

void Decoder::finish(float* output) {
  if (form_ == Form::kMaterialised) {
    linear(weights_->c_to_out, hidden_, heads_ * rank_, latent_.data(), heads_ * rank_, output);
    return;
  }
  if (absorbed()) {
    for (std::int64_t h = 0; h < heads_; ++h) {
      arithmetic_->product({.m = batch_,
                            .n = value_,
                            .k = rank_,
                            .a = latent_.data() + h * rank_,
                            .lda = heads_ * rank_,
                            .b = weights_->v_up.data() + h * value_ * rank_,
                            .ldb = rank_,
                            .transpose_b = true,
                            .c = head_out_.data() + h * value_,
                            .ldc = heads_ * value_});
    }
  }
  linear(weights_->out, hidden_, heads_ * value_, head_out_.data(), heads_ * value_, output);
}

}  // namespace tributary::bench
