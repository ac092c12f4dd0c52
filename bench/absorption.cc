// The forms of MLA decode on one layer of DeepSeek-V2's attention: the time of a step over batch
// and length, and what a cached token costs each form. RMSNorm and RoPE are left out: they are
// small and the same in all forms. OMP_NUM_THREADS sets the threads of oneDNN's products.
#include <dnnl.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <random>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/model/mla_shape.h"
#include "core/model/model_shape.h"
#include "core/reference/error_measures.h"
#include "deploy/app/bench/timing.h"
#include "deploy/runtime/processor_name.h"

namespace tributary::bench {
namespace {

using Floats = std::vector<float>;

enum class Form {
  kDecompressed,  // stores keys and values of every head
  kCompressed,    // stores latent rows, decompresses them in every step
  kAbsorbed,      // W_UK absorbed into the query, which is copied beside its rope part
};
constexpr std::array<std::string_view, 3> kNames{"decompressed", "compressed", "absorbed"};

/// H heads, C kv_lora_rank, R rope, N nope, V value dimension.
struct Dimensions {
  explicit Dimensions(const ModelShape& shape)
      : hidden(shape.hidden_size),
        heads(shape.num_attention_heads),
        q_rank(shape.q_lora_rank),
        rank(shape.kv_lora_rank),
        nope(shape.qk_nope_head_dim),
        rope(shape.qk_rope_head_dim),
        value(shape.v_head_dim),
        scale(static_cast<float>(shape.softmax_scale())) {}
  /// fp32 values that a cached token takes.
  [[nodiscard]] std::int64_t floats(Form form) const {
    return form == Form::kDecompressed ? heads * (nope + rope + value) : rank + rope;
  }
  /// The arithmetic of a cached token in a step: scores and values, and decompressing it.
  [[nodiscard]] double flop(Form form) const {
    const std::int64_t plain = heads * (nope + rope + value);
    const std::int64_t latent = heads * (2 * rank + rope);
    const std::int64_t decompress = heads * (nope + value) * rank;
    return 2.0 * static_cast<double>(form == Form::kDecompressed ? plain
                                     : form == Form::kCompressed ? plain + decompress
                                                                 : latent);
  }

  std::int64_t hidden, heads, q_rank, rank, nope, rope, value;
  float scale;
};

Floats random_floats(std::int64_t count, double deviation, unsigned seed) {
  std::minstd_rand generator(seed);
  const auto width = static_cast<float>(deviation * std::sqrt(12.0));
  std::uniform_real_distribution<float> uniform(-width / 2, width / 2);
  Floats values(static_cast<std::size_t>(count));
  std::ranges::generate(values, [&] { return uniform(generator); });
  return values;
}

/// Rows that lie `stride` floats apart.
template <typename T>
struct Rows {
  T* data;
  std::int64_t stride;
};

/// c [m, n] = a [m, k] b^T for b [n, k], or a b for b [k, n].
void product(std::int64_t m, std::int64_t n, std::int64_t k, Rows<const float> a,
             Rows<const float> b, bool transpose, Rows<float> c) {
  const dnnl_status_t status = dnnl_sgemm('N', transpose ? 'T' : 'N', m, n, k, 1, a.data, a.stride,
                                          b.data, b.stride, 0, c.data, c.stride);
  if (status != dnnl_success) fail(ErrorCode::kInternal, "dnnl_sgemm failed: {}", int{status});
}

void softmax(float* scores, std::int64_t rows, std::int64_t cols, float scale) {
  for (float* row = scores; row != scores + rows * cols; row += cols) {
    const float most = *std::max_element(row, row + cols);
    float sum = 0;
    for (float* s = row; s != row + cols; ++s) sum += (*s = std::exp((*s - most) * scale));
    for (float* s = row; s != row + cols; ++s) *s /= sum;
  }
}

/// Weights are [out, in], standard deviation 1 / sqrt(in).
struct Weights {
  explicit Weights(const Dimensions& d)
      : down(matrix(d.q_rank + d.rank + d.rope, d.hidden)),
        q_up(matrix(d.heads * (d.nope + d.rope), d.q_rank)),
        k_up(matrix(d.heads * d.nope, d.rank)),
        v_up(matrix(d.heads * d.value, d.rank)),
        out(matrix(d.hidden, d.heads * d.value)) {}
  static Floats matrix(std::int64_t rows, std::int64_t cols) {
    const auto seed = static_cast<unsigned>(rows + cols);
    return random_floats(rows * cols, 1 / std::sqrt(static_cast<double>(cols)), seed);
  }

  Floats down, q_up, k_up, v_up, out;
};

/// The cache of one form, and a step over it; the new token's row is the last one.
class Decoder {
 public:
  /// `rows`: [batch, length, C + R].
  Decoder(Form form, const Dimensions& d, const Weights& w, std::int64_t batch, std::int64_t length,
          Floats rows)
      : form_(form), d_(d), w_(w), batch_(batch), length_(length), rows_(std::move(rows)) {
    const std::int64_t kept = form == Form::kDecompressed ? batch
                              : form == Form::kCompressed ? 1
                                                          : 0;
    keys_.resize(static_cast<std::size_t>(kept * length * d.heads * (d.nope + d.rope)));
    values_.resize(static_cast<std::size_t>(kept * length * d.heads * d.value));
    scores_.resize(static_cast<std::size_t>(d.heads * length));
    for (std::int64_t s = 0; s < batch && form == Form::kDecompressed; ++s) {
      decompress(s * length, length, s * length);
    }
  }

  Floats step(const Floats& hidden) {
    const std::int64_t width = d_.q_rank + d_.rank + d_.rope;
    const std::int64_t head = d_.nope + d_.rope;
    const Floats down = linear(w_.down, width, d_.hidden, hidden, d_.hidden);
    for (std::int64_t s = 0; s < batch_; ++s) {
      const std::int64_t last = (s + 1) * length_ - 1;
      std::copy_n(down.data() + s * width + d_.q_rank, d_.rank + d_.rope,
                  rows_.data() + last * (d_.rank + d_.rope));
      if (form_ == Form::kDecompressed) decompress(last, 1, last);
    }
    const Floats q = linear(w_.q_up, d_.heads * head, d_.q_rank, down, width);
    Floats o(static_cast<std::size_t>(batch_ * d_.heads * d_.value));
    if (form_ == Form::kDecompressed || form_ == Form::kCompressed) {
      for (std::int64_t s = 0; s < batch_; ++s) attend_heads(s, q, o);
    } else {
      attend_absorbed(q, o);
    }
    return linear(w_.out, d_.hidden, d_.heads * d_.value, o, d_.heads * d_.value);
  }

 private:
  /// y [batch, rows] = W x.
  [[nodiscard]] Floats linear(const Floats& weight, std::int64_t rows, std::int64_t cols,
                              const Floats& x, std::int64_t stride) const {
    Floats y(static_cast<std::size_t>(batch_ * rows));
    product(batch_, rows, cols, {x.data(), stride}, {weight.data(), cols}, true, {y.data(), rows});
    return y;
  }
  /// Rows [first, first + count) to keys and values from `to` on.
  void decompress(std::int64_t first, std::int64_t count, std::int64_t to) {
    const std::int64_t latent = d_.rank + d_.rope;
    const std::int64_t head = d_.nope + d_.rope;
    const float* rows = rows_.data() + first * latent;
    float* keys = keys_.data() + to * d_.heads * head;
    for (std::int64_t h = 0; h < d_.heads; ++h) {
      product(count, d_.nope, d_.rank, {rows, latent},
              {w_.k_up.data() + h * d_.nope * d_.rank, d_.rank}, true,
              {keys + h * head, d_.heads * head});
      for (std::int64_t t = 0; t < count; ++t) {
        std::copy_n(rows + t * latent + d_.rank, d_.rope,
                    keys + (t * d_.heads + h) * head + d_.nope);
      }
    }
    product(count, d_.heads * d_.value, d_.rank, {rows, latent}, {w_.v_up.data(), d_.rank}, true,
            {values_.data() + to * d_.heads * d_.value, d_.heads * d_.value});
  }
  /// Outputs [H, V] of sequence s from keys and values of each head.
  void attend_heads(std::int64_t s, const Floats& q, Floats& o) {
    if (form_ == Form::kCompressed) decompress(s * length_, length_, 0);
    const std::int64_t begin = form_ == Form::kCompressed ? 0 : s * length_;
    const std::int64_t head = d_.nope + d_.rope;
    for (std::int64_t h = 0; h < d_.heads; ++h) {
      product(1, length_, head, {q.data() + (s * d_.heads + h) * head, head},
              {keys_.data() + (begin * d_.heads + h) * head, d_.heads * head}, true,
              {scores_.data() + h * length_, length_});
    }
    softmax(scores_.data(), d_.heads, length_, d_.scale);
    for (std::int64_t h = 0; h < d_.heads; ++h) {
      product(1, d_.value, length_, {scores_.data() + h * length_, length_},
              {values_.data() + (begin * d_.heads + h) * d_.value, d_.heads * d_.value}, false,
              {o.data() + (s * d_.heads + h) * d_.value, d_.value});
    }
  }
  /// Outputs [batch, H, V]: queries times W_UK, attention over latent rows, latents times W_UV.
  void attend_absorbed(const Floats& q, Floats& o) {
    const std::int64_t latent = d_.rank + d_.rope;
    const std::int64_t head = d_.nope + d_.rope;
    Floats absorbed(static_cast<std::size_t>(batch_ * d_.heads * latent));
    Floats latents(static_cast<std::size_t>(batch_ * d_.heads * d_.rank));
    for (std::int64_t h = 0; h < d_.heads; ++h) {
      product(batch_, d_.rank, d_.nope, {q.data() + h * head, d_.heads * head},
              {w_.k_up.data() + h * d_.nope * d_.rank, d_.rank}, false,
              {absorbed.data() + h * latent, d_.heads * latent});
    }
    for (std::int64_t i = 0; i < batch_ * d_.heads; ++i) {
      std::copy_n(q.data() + i * head + d_.nope, d_.rope, absorbed.data() + i * latent + d_.rank);
    }
    for (std::int64_t s = 0; s < batch_; ++s) {
      const Rows<const float> rows{rows_.data() + s * length_ * latent, latent};
      product(d_.heads, length_, latent, {absorbed.data() + s * d_.heads * latent, latent}, rows,
              true, {scores_.data(), length_});
      softmax(scores_.data(), d_.heads, length_, d_.scale);
      product(d_.heads, d_.rank, length_, {scores_.data(), length_}, rows, false,
              {latents.data() + s * d_.heads * d_.rank, d_.rank});
    }
    for (std::int64_t h = 0; h < d_.heads; ++h) {
      product(batch_, d_.value, d_.rank, {latents.data() + h * d_.rank, d_.heads * d_.rank},
              {w_.v_up.data() + h * d_.value * d_.rank, d_.rank}, true,
              {o.data() + h * d_.value, d_.heads * d_.value});
    }
  }

  Form form_;
  const Dimensions& d_;
  const Weights& w_;
  std::int64_t batch_, length_;
  Floats rows_;           // latent rows [batch, length, C + R]
  Floats keys_, values_;  // [length, H, N + R] and [length, H, V], of every or of one sequence
  Floats scores_;         // [H, length]
};

/// The median of up to five steps; one step where it takes over a second.
double step_seconds(Decoder& decoder, const Floats& hidden) {
  std::vector<double> seconds;
  do {
    const auto begin = std::chrono::steady_clock::now();
    (void)decoder.step(hidden);
    seconds.push_back(seconds_since(begin));
  } while (seconds.size() < 5 && seconds.back() < 1);
  return median(std::move(seconds));
}

/// The forms compute the same function: throws where an output of a small shape differs by more
/// than the rounding of fp32 sums of some hundred terms.
void check_agreement() {
  ModelShape shape = find_model_shape("deepseek-v2");
  shape.hidden_size = 200;
  shape.num_attention_heads = 3;
  shape.q_lora_rank = 70;
  shape.kv_lora_rank = 90;
  shape.qk_nope_head_dim = 40;
  shape.qk_rope_head_dim = 24;
  shape.v_head_dim = 50;
  const Dimensions d(shape);
  const Weights weights(d);
  constexpr std::int64_t kBatch = 2;
  constexpr std::int64_t kLength = 293;
  const Floats hidden = random_floats(kBatch * d.hidden, 1, 7);
  const Floats rows = random_floats(kBatch * kLength * (d.rank + d.rope), 1, 8);
  std::vector<double> expected;
  for (std::size_t f = 0; f < kNames.size(); ++f) {
    const Floats output =
        Decoder(static_cast<Form>(f), d, weights, kBatch, kLength, rows).step(hidden);
    if (f == 0) expected.assign(output.begin(), output.end());
    const TensorError error = measure_error(std::span(output), expected, d.hidden);
    if (!(error.relative_frobenius <= 1e-5)) {
      fail(ErrorCode::kInternal, "{} differs from {}: {}", kNames[f], kNames[0], error.text());
    }
  }
}

void run(const std::vector<std::int64_t>& batches, const std::vector<std::int64_t>& lengths,
         double memory_gib) {
  check_agreement();
  const Dimensions d(find_model_shape("deepseek-v2"));
  const Weights weights(d);
  fmt::print(
      "{}; deepseek-v2, fp32 cache and weights, oneDNN's sgemm\n"
      "{:13}{:>9}{:>12}{:>6}{:>8}{:>10}{:>9}{:>10}\n",
      processor_name(), "form", "kB/token", "MFLOP/token", "batch", "length", "cache MB", "step ms",
      "ms/token");
  for (std::size_t f = 0; f < kNames.size(); ++f) {
    const auto form = static_cast<Form>(f);
    for (const std::int64_t batch : batches) {
      const Floats hidden = random_floats(batch * d.hidden, 1, 7);
      for (const std::int64_t length : lengths) {
        const double bytes = 4.0 * static_cast<double>(batch * length * d.floats(form));
        fmt::print("{:13}{:9.2f}{:12.2f}{:6}{:8}{:10.1f}", kNames[f],
                   4e-3 * static_cast<double>(d.floats(form)), d.flop(form) / 1e6, batch, length,
                   bytes / 1e6);
        if (bytes > memory_gib * (1U << 30)) {
          fmt::print("  left out: more than --memory-gib {}\n", memory_gib);
          continue;
        }
        Decoder decoder(form, d, weights, batch, length,
                        random_floats(batch * length * (d.rank + d.rope), 0.6, 8));
        const double ms = 1e3 * step_seconds(decoder, hidden);
        fmt::print("{:9.2f}{:10.3f}\n", ms, ms / static_cast<double>(batch));
      }
    }
  }
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  CLI::App app{"Forms of MLA decode on one layer of DeepSeek-V2's attention"};
  std::vector<std::int64_t> batches{1, 8};
  std::vector<std::int64_t> lengths{512, 2048};
  double memory_gib = 4;
  app.add_option("--batch", batches, "sequences of a step")->check(CLI::PositiveNumber);
  app.add_option("--length", lengths, "cached tokens of each")->check(CLI::PositiveNumber);
  app.add_option("--memory-gib", memory_gib, "leaves out what caches more");
  CLI11_PARSE(app, argc, argv);
  try {
    tributary::bench::run(batches, lengths, memory_gib);
  } catch (const std::exception& error) {
    fmt::print(stderr, "absorption: {}\n", error.what());
    return 1;
  }
  return 0;
}
