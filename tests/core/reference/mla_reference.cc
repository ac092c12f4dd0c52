// The layer in plain loops over doubles, one helper per formula.
#include "tests/core/reference/mla_reference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/error.h"
#include "core/layer/check_weights.h"
#include "core/model/rope.h"

namespace tributary {
namespace {

/// Eight partial sums, so that the loop vectorises without reassociating one sum.
double dot(const double* a, const double* b, std::size_t n) {
  constexpr std::size_t kLanes = 8;
  std::array<double, kLanes> sum{};
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) sum[lane] += a[i + lane] * b[i + lane];
  }
  double total = 0;
  for (; i < n; ++i) total += a[i] * b[i];
  for (const double part : sum) total += part;
  return total;
}

/// y[t] = W x[t] for x [tokens, cols] with stride x_stride, W [rows, cols] starting at `weight`.
/// y [tokens, rows] with stride y_stride.
void linear(const float* weight, std::size_t rows, std::size_t cols, const double* x,
            std::size_t x_stride, std::size_t tokens, double* y, std::size_t y_stride) {
  std::vector<double> row(cols);
  for (std::size_t r = 0; r < rows; ++r) {
    std::copy_n(weight + r * cols, cols, row.begin());
    for (std::size_t t = 0; t < tokens; ++t) {
      y[t * y_stride + r] = dot(row.data(), x + t * x_stride, cols);
    }
  }
}

/// x / sqrt(mean(x^2) + eps) * weight, in place.
void rms_norm(double* x, const std::vector<float>& weight, double eps) {
  const std::size_t width = weight.size();
  const double mean = dot(x, x, width) / static_cast<double>(width);
  const double scale = 1 / std::sqrt(mean + eps);
  for (std::size_t i = 0; i < width; ++i) x[i] *= scale * static_cast<double>(weight[i]);
}

std::size_t whole(const char* name, std::size_t elements, std::size_t width) {
  if (elements % width != 0) {
    fail(ErrorCode::kInvalidArgument, "MLA reference: {} elements of {} are no multiple of {}",
         elements, name, width);
  }
  return elements / width;
}

void check_same(const char* name, std::size_t tokens, std::size_t expected) {
  if (tokens != expected) {
    fail(ErrorCode::kInvalidArgument, "MLA reference: {} {} for {} tokens", tokens, name, expected);
  }
}

}  // namespace

MlaReference::MlaReference(const ModelShape& shape, const LayerWeights& weights)
    : weights_(&weights),
      shape_(shape),
      frequencies_(rope_frequencies(shape.rope, shape.qk_rope_head_dim)),
      hidden_(static_cast<std::size_t>(shape.hidden_size)),
      heads_(static_cast<std::size_t>(shape.num_attention_heads)),
      q_rank_(static_cast<std::size_t>(shape.q_lora_rank)),
      rank_(static_cast<std::size_t>(shape.kv_lora_rank)),
      nope_(static_cast<std::size_t>(shape.qk_nope_head_dim)),
      rope_(static_cast<std::size_t>(shape.qk_rope_head_dim)),
      value_(static_cast<std::size_t>(shape.v_head_dim)) {
  check_layer_weights(shape, weights);
}

/// Rotates the adjacent pairs (2i, 2i + 1) by position * frequency[i].
void MlaReference::rotate(double* pairs, std::int64_t position) const {
  for (std::size_t i = 0; i < frequencies_.size(); ++i) {
    const double angle = static_cast<double>(position) * frequencies_[i];
    const double cosine = std::cos(angle);
    const double sine = std::sin(angle);
    const double even = pairs[2 * i];
    const double odd = pairs[2 * i + 1];
    pairs[2 * i] = even * cosine - odd * sine;
    pairs[2 * i + 1] = even * sine + odd * cosine;
  }
}

std::vector<double> MlaReference::latent_rows(std::span<const float> hidden,
                                              std::span<const std::int64_t> positions,
                                              std::optional<RowFormat> row_format) const {
  const std::size_t tokens = whole("hidden", hidden.size(), hidden_);
  check_same("positions", positions.size(), tokens);
  const std::vector<double> x(hidden.begin(), hidden.end());
  const std::size_t latent_dim = rank_ + rope_;
  std::vector<double> rows(tokens * latent_dim);
  linear(weights_->kv_a_proj.data(), latent_dim, hidden_, x.data(), hidden_, tokens, rows.data(),
         latent_dim);
  for (std::size_t t = 0; t < tokens; ++t) {
    double* row = rows.data() + t * latent_dim;
    rms_norm(row, weights_->kv_a_layernorm, shape_.latent_norm_eps);
    rotate(row + rank_, positions[t]);
  }
  if (!row_format) return rows;
  std::vector<float> stored(rows.begin(), rows.end());
  RowLayout{*row_format, shape_.kv_lora_rank, shape_.qk_rope_head_dim}.round(stored);
  return {stored.begin(), stored.end()};
}

std::vector<double> MlaReference::queries(std::span<const float> hidden,
                                          std::span<const std::int64_t> positions) const {
  const std::size_t tokens = whole("hidden", hidden.size(), hidden_);
  check_same("positions", positions.size(), tokens);
  const std::vector<double> x(hidden.begin(), hidden.end());
  const std::size_t width = heads_ * (nope_ + rope_);
  std::vector<double> queries(tokens * width);
  if (q_rank_ == 0) {
    linear(weights_->q_proj.data(), width, hidden_, x.data(), hidden_, tokens, queries.data(),
           width);
  } else {
    std::vector<double> low(tokens * q_rank_);
    linear(weights_->q_a_proj.data(), q_rank_, hidden_, x.data(), hidden_, tokens, low.data(),
           q_rank_);
    for (std::size_t t = 0; t < tokens; ++t) {
      rms_norm(low.data() + t * q_rank_, weights_->q_a_layernorm, shape_.latent_norm_eps);
    }
    linear(weights_->q_b_proj.data(), width, q_rank_, low.data(), q_rank_, tokens, queries.data(),
           width);
  }
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < heads_; ++h) {
      rotate(queries.data() + (t * heads_ + h) * (nope_ + rope_) + nope_, positions[t]);
    }
  }
  return queries;
}

std::vector<double> MlaReference::absorb(std::span<const double> queries) const {
  const std::size_t head_dim = nope_ + rope_;
  const std::size_t tokens = whole("queries", queries.size(), heads_ * head_dim);
  const std::size_t latent_dim = rank_ + rope_;
  std::vector<double> absorbed(tokens * heads_ * latent_dim);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < heads_; ++h) {
      const double* query = queries.data() + (t * heads_ + h) * head_dim;
      const float* w_uk = weights_->kv_b_proj.data() + h * (nope_ + value_) * rank_;
      double* out = absorbed.data() + (t * heads_ + h) * latent_dim;
      for (std::size_t n = 0; n < nope_; ++n) {
        for (std::size_t c = 0; c < rank_; ++c) {
          out[c] += query[n] * static_cast<double>(w_uk[n * rank_ + c]);
        }
      }
      std::copy_n(query + nope_, rope_, out + rank_);
    }
  }
  return absorbed;
}

std::vector<double> MlaReference::output(std::span<const double> latents) const {
  const std::size_t tokens = whole("latents", latents.size(), heads_ * rank_);
  std::vector<double> values(tokens * heads_ * value_);
  for (std::size_t h = 0; h < heads_; ++h) {
    const float* w_uv = weights_->kv_b_proj.data() + (h * (nope_ + value_) + nope_) * rank_;
    linear(w_uv, value_, rank_, latents.data() + h * rank_, heads_ * rank_, tokens,
           values.data() + h * value_, heads_ * value_);
  }
  std::vector<double> result(tokens * hidden_);
  linear(weights_->o_proj.data(), hidden_, heads_ * value_, values.data(), heads_ * value_, tokens,
         result.data(), hidden_);
  return result;
}

std::vector<double> MlaReference::prefill(std::span<const double> queries,
                                          std::span<const double> rows) const {
  const std::size_t head_dim = nope_ + rope_;
  const std::size_t latent_dim = rank_ + rope_;
  const std::size_t kv_dim = nope_ + value_;
  const std::size_t tokens = whole("queries", queries.size(), heads_ * head_dim);
  check_same("rows", whole("rows", rows.size(), latent_dim), tokens);
  const double scale = shape_.softmax_scale();

  std::vector<double> kv(tokens * heads_ * kv_dim);
  linear(weights_->kv_b_proj.data(), heads_ * kv_dim, rank_, rows.data(), latent_dim, tokens,
         kv.data(), heads_ * kv_dim);
  std::vector<double> values(tokens * heads_ * value_);
  std::vector<double> weight(tokens);
  for (std::size_t t = 0; t < tokens; ++t) {
    for (std::size_t h = 0; h < heads_; ++h) {
      const double* query = queries.data() + (t * heads_ + h) * head_dim;
      double maximum = -std::numeric_limits<double>::infinity();
      for (std::size_t j = 0; j <= t; ++j) {
        const double* key = kv.data() + (j * heads_ + h) * kv_dim;
        weight[j] = scale * (dot(query, key, nope_) +
                             dot(query + nope_, rows.data() + j * latent_dim + rank_, rope_));
        maximum = std::max(maximum, weight[j]);
      }
      double* value = values.data() + (t * heads_ + h) * value_;
      double sum = 0;
      for (std::size_t j = 0; j <= t; ++j) {
        const double* v = kv.data() + (j * heads_ + h) * kv_dim + nope_;
        const double w = std::exp(weight[j] - maximum);
        sum += w;
        for (std::size_t d = 0; d < value_; ++d) value[d] += w * v[d];
      }
      for (std::size_t d = 0; d < value_; ++d) value[d] /= sum;
    }
  }
  std::vector<double> result(tokens * hidden_);
  linear(weights_->o_proj.data(), hidden_, heads_ * value_, values.data(), heads_ * value_, tokens,
         result.data(), hidden_);
  return result;
}

}  // namespace tributary
