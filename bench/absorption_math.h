// The arithmetic of bench/absorption: oneDNN's sgemm for products of two matrices, loops for
// reading a cache once, on a fixed number of threads. Every multiply-add is counted.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/dtype.h"

namespace tributary::bench {

/// Uninitialised memory whose size is added to a counter.
template <typename T>
class Array {
 public:
  Array() = default;
  Array(std::int64_t count, std::size_t& bytes)
      : data_(std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(count))), count_(count) {
    bytes += static_cast<std::size_t>(count) * sizeof(T);
  }

  [[nodiscard]] T* data() const noexcept { return data_.get(); }
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }

 private:
  std::unique_ptr<T[]> data_;
  std::int64_t count_ = 0;
};

/// C [m, n] = A [m, k] op(B), or += if `accumulate`. Row-major, leading dimensions in elements.
/// op(B) is B [k, n], or the transpose of B [n, k].
struct Product {
  std::int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  std::int64_t lda = 0;
  const float* b = nullptr;
  std::int64_t ldb = 0;
  bool transpose_b = false;
  bool accumulate = false;
  float* c = nullptr;
  std::int64_t ldc = 0;
};

/// One query per head and that head's keys: scores[h][t] (+)= q[h] . key[t][h] over `dim`.
template <typename T>
struct HeadScores {
  std::int64_t heads = 0, tokens = 0, dim = 0;
  const float* q = nullptr;  // [heads], with q_stride
  std::int64_t q_stride = 0;
  const T* keys = nullptr;  // head_stride 0: all heads share the keys
  std::int64_t token_stride = 0, head_stride = 0;
  bool accumulate = false;
  float* scores = nullptr;  // [heads], with score_stride
  std::int64_t score_stride = 0;
};

/// o[h] += sum over t of weights[h][t] * value[t][h] over `dim`.
template <typename T>
struct HeadValues {
  std::int64_t heads = 0, tokens = 0, dim = 0;
  const float* weights = nullptr;  // [heads], with weight_stride
  std::int64_t weight_stride = 0;
  const T* values = nullptr;  // [tokens, heads, dim], dense
  float* o = nullptr;         // [heads, dim], dense
};

class Arithmetic {
 public:
  explicit Arithmetic(int threads) : threads_(threads) {}

  /// FLOP so far, two for each multiply-add. Softmax and conversions are not counted.
  [[nodiscard]] std::int64_t flop() const noexcept { return flop_; }

  void product(const Product& p);
  void scores(const HeadScores<bf16>& s);
  void scores(const HeadScores<float>& s);
  void values(const HeadValues<bf16>& v);
  void values(const HeadValues<float>& v);
  /// Softmax in place: dense rows of `cols` scores become exp(scale * score) over their sum.
  void softmax(float* scores, std::int64_t rows, std::int64_t cols, float scale) const;
  void widen(const bf16* from, std::int64_t count, float* to) const;

 private:
  template <typename Range>
  void parallel(std::int64_t count, const Range& range) const;

  int threads_;
  std::int64_t flop_ = 0;
};

}  // namespace tributary::bench
