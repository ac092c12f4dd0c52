// Loops that compilers vectorise, compiled for several instruction sets.
#include "bench/absorption_math.h"

#include <dnnl.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <thread>
#include <vector>

#include "core/base/error.h"

// One copy of a function per instruction set; the best is chosen at program start.
#if defined(__x86_64__) && !defined(__clang__)
#define TRIBUTARY_BENCH_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#define TRIBUTARY_BENCH_INLINE inline __attribute__((always_inline))
#else
#define TRIBUTARY_BENCH_CLONES
#define TRIBUTARY_BENCH_INLINE inline
#endif

namespace tributary::bench {
namespace {

// Partial sums of a reduction: one 512-bit vector, two or four narrower ones.
constexpr std::int64_t kLanes = 16;

TRIBUTARY_BENCH_INLINE float widened(float value) {
  return value;
}
TRIBUTARY_BENCH_INLINE float widened(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

template <typename T>
TRIBUTARY_BENCH_INLINE float dot(const float* a, const T* b, std::int64_t n) {
  std::array<float, kLanes> sum{};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      sum[static_cast<std::size_t>(lane)] += a[i + lane] * widened(b[i + lane]);
    }
  }
  float total = 0;
  for (; i < n; ++i) total += a[i] * widened(b[i]);
  for (const float part : sum) total += part;
  return total;
}

template <typename T>
TRIBUTARY_BENCH_INLINE void score_range(const HeadScores<T>& s, std::int64_t begin,
                                        std::int64_t end) {
  for (std::int64_t t = begin; t < end; ++t) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const T* key = s.keys + t * s.token_stride + h * s.head_stride;
      const float score = dot(s.q + h * s.q_stride, key, s.dim);
      float& out = s.scores[h * s.score_stride + t];
      out = s.accumulate ? out + score : score;
    }
  }
}

// Four tokens per pass, for a quarter of the loads and stores of o.
template <typename T>
TRIBUTARY_BENCH_INLINE void value_range(const HeadValues<T>& v, std::int64_t begin,
                                        std::int64_t end) {
  const std::int64_t stride = v.heads * v.dim;
  std::int64_t t = 0;
  for (; t + 4 <= v.tokens; t += 4) {
    for (std::int64_t h = begin; h < end; ++h) {
      const float* w = v.weights + h * v.weight_stride + t;
      const T* value = v.values + t * stride + h * v.dim;
      float* o = v.o + h * v.dim;
      for (std::int64_t d = 0; d < v.dim; ++d) {
        o[d] += (w[0] * widened(value[d]) + w[1] * widened(value[stride + d])) +
                (w[2] * widened(value[2 * stride + d]) + w[3] * widened(value[3 * stride + d]));
      }
    }
  }
  for (; t < v.tokens; ++t) {
    for (std::int64_t h = begin; h < end; ++h) {
      const float w = v.weights[h * v.weight_stride + t];
      const T* value = v.values + t * stride + h * v.dim;
      float* o = v.o + h * v.dim;
      for (std::int64_t d = 0; d < v.dim; ++d) o[d] += w * widened(value[d]);
    }
  }
}

// exp for x <= 0: 2^n * e^r with |r| <= ln(2) / 2 and the Taylor polynomial of degree 6 in r, whose
// error is 2e-7. Below -87 the result is practically 0.
TRIBUTARY_BENCH_INLINE float exp_negative(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  x = x < -87.0F ? -87.0F : x;
  const float shifted = x * 1.44269504F + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * 0.693359375F) + n * 2.12194440e-4F;
  float y = 1.0F / 720;
  y = y * r + 1.0F / 120;
  y = y * r + 1.0F / 24;
  y = y * r + 1.0F / 6;
  y = y * r + 0.5F;
  y = y * r + 1;
  y = y * r + 1;
  return std::bit_cast<float>(std::bit_cast<std::int32_t>(y) +
                              (static_cast<std::int32_t>(n) << 23));
}

TRIBUTARY_BENCH_CLONES void score_bf16(const HeadScores<bf16>& s, std::int64_t begin,
                                       std::int64_t end) {
  score_range(s, begin, end);
}
TRIBUTARY_BENCH_CLONES void score_f32(const HeadScores<float>& s, std::int64_t begin,
                                      std::int64_t end) {
  score_range(s, begin, end);
}
TRIBUTARY_BENCH_CLONES void value_bf16(const HeadValues<bf16>& v, std::int64_t begin,
                                       std::int64_t end) {
  value_range(v, begin, end);
}
TRIBUTARY_BENCH_CLONES void value_f32(const HeadValues<float>& v, std::int64_t begin,
                                      std::int64_t end) {
  value_range(v, begin, end);
}
TRIBUTARY_BENCH_CLONES void widen_range(const bf16* from, std::int64_t count, float* to) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = widened(from[i]);
}

TRIBUTARY_BENCH_CLONES void softmax_row(float* row, std::int64_t cols, float scale) {
  std::array<float, kLanes> lanes{};
  lanes.fill(-std::numeric_limits<float>::infinity());
  const std::int64_t whole = cols - cols % kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      float& most = lanes[static_cast<std::size_t>(lane)];
      most = row[i + lane] > most ? row[i + lane] : most;
    }
  }
  float most = *std::max_element(lanes.begin(), lanes.end());
  for (std::int64_t i = whole; i < cols; ++i) most = std::max(most, row[i]);
  for (std::int64_t i = 0; i < cols; ++i) row[i] = exp_negative((row[i] - most) * scale);
  lanes.fill(0);
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[static_cast<std::size_t>(lane)] += row[i + lane];
    }
  }
  float sum = 0;
  for (std::int64_t i = whole; i < cols; ++i) sum += row[i];
  for (const float part : lanes) sum += part;
  const float factor = 1 / sum;
  for (std::int64_t i = 0; i < cols; ++i) row[i] *= factor;
}

}  // namespace

/// Calls range(begin, end) on each thread, for contiguous parts of [0, count).
template <typename Range>
void Arithmetic::parallel(std::int64_t count, const Range& range) const {
  const auto part = [&](int i) { return count * i / threads_; };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads_; ++i) {
    others.emplace_back([&range, begin = part(i), end = part(i + 1)] { range(begin, end); });
  }
  range(0, part(1));
}

void Arithmetic::product(const Product& p) {
  const dnnl_status_t status =
      dnnl_sgemm('N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1, p.a, p.lda, p.b, p.ldb,
                 p.accumulate ? 1.0F : 0.0F, p.c, p.ldc);
  if (status != dnnl_success) {
    fail(ErrorCode::kInternal, "dnnl_sgemm of {} x {} x {} failed with status {}", p.m, p.n, p.k,
         static_cast<int>(status));
  }
  flop_ += 2 * p.m * p.n * p.k;
}

void Arithmetic::scores(const HeadScores<bf16>& s) {
  parallel(s.tokens, [&](std::int64_t begin, std::int64_t end) { score_bf16(s, begin, end); });
  flop_ += 2 * s.heads * s.tokens * s.dim;
}

void Arithmetic::scores(const HeadScores<float>& s) {
  parallel(s.tokens, [&](std::int64_t begin, std::int64_t end) { score_f32(s, begin, end); });
  flop_ += 2 * s.heads * s.tokens * s.dim;
}

void Arithmetic::values(const HeadValues<bf16>& v) {
  parallel(v.heads, [&](std::int64_t begin, std::int64_t end) { value_bf16(v, begin, end); });
  flop_ += 2 * v.heads * v.tokens * v.dim;
}

void Arithmetic::values(const HeadValues<float>& v) {
  parallel(v.heads, [&](std::int64_t begin, std::int64_t end) { value_f32(v, begin, end); });
  flop_ += 2 * v.heads * v.tokens * v.dim;
}

void Arithmetic::softmax(float* scores, std::int64_t rows, std::int64_t cols, float scale) const {
  parallel(rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) softmax_row(scores + row * cols, cols, scale);
  });
}

void Arithmetic::widen(const bf16* from, std::int64_t count, float* to) const {
  parallel(count, [&](std::int64_t begin, std::int64_t end) {
    widen_range(from + begin, end - begin, to + begin);
  });
}

}  // namespace tributary::bench
