// Online softmax over blocks of rows, in double.
#include "core/reference/reference_attend.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/base/error.h"

namespace tributary {
namespace {

// Scores are computed for a block of rows at a time, kLanes rows in one inner loop: a loop over
// independent rows is one that every compiler vectorises, where a dot product would need
// reassociation. 16 doubles are half of the smallest x86-64's vector registers; 64 rows of 576
// doubles and their transpose stay inside a second-level cache.
constexpr std::size_t kLanes = 16;
constexpr std::size_t kBlockRows = 64;

std::size_t positive(const char* name, int value) {
  if (value < 0) fail(ErrorCode::kInvalidArgument, "reference attention: {} {}", name, value);
  return static_cast<std::size_t>(value);
}

/// scores[j] = sum over c of query[c] * columns[c][j] for kLanes rows.
void score_lanes(const double* query, const double* columns, std::size_t latent_dim,
                 double* scores) {
  std::array<double, kLanes> sum{};
  for (std::size_t c = 0; c < latent_dim; ++c) {
    const double* column = columns + c * kBlockRows;
    for (std::size_t j = 0; j < kLanes; ++j) sum[j] += query[c] * column[j];
  }
  std::copy(sum.begin(), sum.end(), scores);
}

}  // namespace

ReferenceAttention::ReferenceAttention(int heads, int kv_lora_rank, int rope_dim,
                                       double softmax_scale, std::span<const double> query)
    : heads_(positive("heads", heads)),
      rank_(positive("kv_lora_rank", kv_lora_rank)),
      latent_dim_(rank_ + positive("rope_dim", rope_dim)),
      softmax_scale_(softmax_scale),
      query_(query.begin(), query.end()),
      maximum_(heads_, -std::numeric_limits<double>::infinity()),
      sum_(heads_),
      o_(heads_ * rank_),
      block_(kBlockRows * latent_dim_),
      columns_(kBlockRows * latent_dim_) {
  if (latent_dim_ == 0 || query.size() != heads_ * latent_dim_) {
    fail(ErrorCode::kInvalidArgument,
         "reference attention: query of {} elements for {} heads of {}", query.size(), heads_,
         latent_dim_);
  }
}

void ReferenceAttention::add(std::span<const float> rows) {
  add_rows(rows);
}
void ReferenceAttention::add(std::span<const double> rows) {
  add_rows(rows);
}

template <typename T>
void ReferenceAttention::add_rows(std::span<const T> rows) {
  if (rows.size() % latent_dim_ != 0) {
    fail(ErrorCode::kInvalidArgument, "reference attention: {} elements are no whole rows of {}",
         rows.size(), latent_dim_);
  }
  const std::size_t total = rows.size() / latent_dim_;
  for (std::size_t begin = 0; begin < total; begin += kBlockRows) {
    const std::size_t count = std::min(kBlockRows, total - begin);
    const T* source = rows.data() + begin * latent_dim_;
    for (std::size_t i = 0; i < count * latent_dim_; ++i) block_[i] = source[i];
    add_block(count);
  }
}

void ReferenceAttention::add_block(std::size_t rows) {
  for (std::size_t j = 0; j < rows; ++j) {
    const double* row = block_.data() + j * latent_dim_;
    for (std::size_t c = 0; c < latent_dim_; ++c) columns_[c * kBlockRows + j] = row[c];
  }
  std::array<double, kBlockRows> weight{};
  for (std::size_t h = 0; h < heads_; ++h) {
    const double* query = query_.data() + h * latent_dim_;
    for (std::size_t j = 0; j < rows; j += kLanes) {  // lanes beyond `rows` are computed, not used
      score_lanes(query, columns_.data() + j, latent_dim_, weight.data() + j);
    }
    double maximum = maximum_[h];
    for (std::size_t j = 0; j < rows; ++j) {
      weight[j] *= softmax_scale_;
      maximum = std::max(maximum, weight[j]);
    }
    double* o = o_.data() + h * rank_;
    // Before the first row the old maximum is -inf: the factor is 0 and there is nothing to scale.
    const double keep = std::exp(maximum_[h] - maximum);
    if (keep != 1) {
      sum_[h] *= keep;
      for (std::size_t c = 0; c < rank_; ++c) o[c] *= keep;
    }
    maximum_[h] = maximum;
    for (std::size_t j = 0; j < rows; ++j) {
      weight[j] = std::exp(weight[j] - maximum);
      sum_[h] += weight[j];
    }
    std::size_t j = 0;
    for (; j + 4 <= rows; j += 4) {  // four rows a pass: a quarter of the loads and stores of o
      const double* row = block_.data() + j * latent_dim_;
      for (std::size_t c = 0; c < rank_; ++c) {
        o[c] +=
            (weight[j] * row[c] + weight[j + 1] * row[latent_dim_ + c]) +
            (weight[j + 2] * row[2 * latent_dim_ + c] + weight[j + 3] * row[3 * latent_dim_ + c]);
      }
    }
    for (; j < rows; ++j) {
      const double* row = block_.data() + j * latent_dim_;
      for (std::size_t c = 0; c < rank_; ++c) o[c] += weight[j] * row[c];
    }
  }
}

ReferenceState ReferenceAttention::state() const {
  ReferenceState result{.o = o_, .lse = std::vector<double>(heads_)};
  for (std::size_t h = 0; h < heads_; ++h) {
    result.lse[h] = maximum_[h] + std::log(sum_[h]);  // -inf + log(0) without a row
    if (sum_[h] == 0) continue;
    for (std::size_t c = 0; c < rank_; ++c) result.o[h * rank_ + c] /= sum_[h];
  }
  return result;
}

}  // namespace tributary
