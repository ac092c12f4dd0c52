// Random numbers, and the products of the projection matrices.
#include "bench/absorption_weights.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace tributary::bench {
namespace {

// Number of random numbers that are drawn and then repeated: drawing 10^10 would take longer than
// the measurement. A prime, so that the period matches no dimension.
constexpr std::int64_t kRandomPeriod = 1000003;

const std::vector<float>& random_numbers() {
  static const std::vector<float> kNumbers = [] {
    std::mt19937 generator(1);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> numbers(static_cast<std::size_t>(kRandomPeriod));
    for (float& number : numbers) number = uniform(generator);
    return numbers;
  }();
  return kNumbers;
}

template <typename T, typename Convert>
void fill_converted(const Array<T>& array, std::int64_t start, const Convert& convert) {
  const std::vector<float>& numbers = random_numbers();
  std::vector<T> period(numbers.size());
  std::transform(numbers.begin(), numbers.end(), period.begin(), convert);
  std::rotate(period.begin(), period.begin() + start % kRandomPeriod, period.end());
  for (std::int64_t at = 0; at < array.count(); at += kRandomPeriod) {
    std::copy_n(period.data(), std::min(kRandomPeriod, array.count() - at), array.data() + at);
  }
}

}  // namespace

void fill_random(const Array<bf16>& array, std::int64_t start) {
  fill_converted(array, start, [](float x) { return to_bf16(x); });
}

Weights::Weights(const ModelShape& shape, bool materialised, Arithmetic& arithmetic) {
  const std::int64_t hidden = shape.hidden_size;
  const std::int64_t heads = shape.num_attention_heads;
  const std::int64_t q_rank = shape.q_lora_rank;
  const std::int64_t rank = shape.kv_lora_rank;
  const std::int64_t nope = shape.qk_nope_head_dim;
  const std::int64_t rope = shape.qk_rope_head_dim;
  const std::int64_t value = shape.v_head_dim;
  std::int64_t start = 0;
  const auto matrix = [&](std::int64_t rows, std::int64_t cols) {
    Array<float> weight(rows * cols, bytes_);
    // The uniform distribution over (-a, a) has standard deviation a / sqrt(3).
    const auto a = static_cast<float>(std::sqrt(3.0 / static_cast<double>(cols)));
    fill_converted(weight, start += 7919, [a](float x) { return a * x; });
    return weight;
  };
  down = matrix(q_rank + rank + rope, hidden);
  q_up = matrix(heads * (nope + rope), q_rank);
  k_up = matrix(heads * nope, rank);
  v_up = matrix(heads * value, rank);
  out = matrix(hidden, heads * value);
  if (!materialised) return;

  q_to_c = Array<float>(heads * rank * q_rank, bytes_);
  q_to_rope = Array<float>(heads * rope * q_rank, bytes_);
  c_to_out = Array<float>(hidden * heads * rank, bytes_);
  std::vector<float> k_up_transposed(static_cast<std::size_t>(rank * nope));
  for (std::int64_t h = 0; h < heads; ++h) {
    const float* q_head = q_up.data() + h * (nope + rope) * q_rank;
    for (std::int64_t n = 0; n < nope; ++n) {
      for (std::int64_t c = 0; c < rank; ++c) {
        k_up_transposed[static_cast<std::size_t>(c * nope + n)] =
            k_up.data()[(h * nope + n) * rank + c];
      }
    }
    arithmetic.product({.m = rank,
                        .n = q_rank,
                        .k = nope,
                        .a = k_up_transposed.data(),
                        .lda = nope,
                        .b = q_head,
                        .ldb = q_rank,
                        .c = q_to_c.data() + h * rank * q_rank,
                        .ldc = q_rank});
    std::copy_n(q_head + nope * q_rank, rope * q_rank, q_to_rope.data() + h * rope * q_rank);
    arithmetic.product({.m = hidden,
                        .n = rank,
                        .k = value,
                        .a = out.data() + h * value,
                        .lda = heads * value,
                        .b = v_up.data() + h * value * rank,
                        .ldb = rank,
                        .c = c_to_out.data() + h * rank,
                        .ldc = heads * rank});
  }
  for (Array<float>* used_up : {&q_up, &k_up, &v_up, &out}) *used_up = Array<float>();
  bytes_ = bytes_needed(shape, true);
}

std::size_t Weights::bytes_needed(const ModelShape& shape, bool materialised) {
  const std::int64_t hidden = shape.hidden_size;
  const std::int64_t heads = shape.num_attention_heads;
  const std::int64_t down = (shape.q_lora_rank + shape.latent_dim()) * hidden;
  const std::int64_t rest =
      materialised
          ? heads * shape.latent_dim() * shape.q_lora_rank + hidden * heads * shape.kv_lora_rank
          : heads * shape.qk_head_dim() * shape.q_lora_rank +
                heads * (shape.qk_nope_head_dim + shape.v_head_dim) * shape.kv_lora_rank +
                hidden * heads * shape.v_head_dim;
  return static_cast<std::size_t>(down + rest) * sizeof(float);
}

}  // namespace tributary::bench
