// Absorbed MLA decode as SGLang computes it on CPUs (decode_attention_mla of its kernels), with all
// heads in one block: 256 rows at a time are packed in pairs, both products are oneDNN's brgemm as
// PyTorch exports it, softmax runs over the block's scores. A peer of bench/cpu_limits; built by
// bench/peers.sh against an installed PyTorch, whose headers it does not need.
//
// Reads lines `heads length threads repetitions sequences` and answers each with the seconds of the
// best of the repetitions. Prints `ready VERSION` first, after a comparison with float64.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"
#include "kernels/cpu/avx512_math.h"

// As ATen/native/CPUBlas.h declares them. C [m][n] = A [m][k] B, or += with add_to_c; B in pairs of
// rows, [k / 2][n][2].
namespace c10 {
struct BFloat16;
}
namespace at::native::cpublas {
void brgemm(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t lda, std::int64_t ldb,
            std::int64_t ldc, bool add_to_c, const c10::BFloat16* a, const c10::BFloat16* b,
            float* c, bool in_pairs);
void brgemm_release(bool in_pairs);
}  // namespace at::native::cpublas

TRIBUTARY_AVX512_BEGIN
namespace tributary::bench {
namespace {

using cpu::F32;
using cpu::kLanes;
using cpu::Words;

constexpr int kRank = 512;
constexpr int kLatent = 576;
constexpr int kBlock = 256;  // rows
constexpr float kScale = 0.0417F;

const c10::BFloat16* halves(const bf16* data) {
  return reinterpret_cast<const c10::BFloat16*>(data);
}

/// The scratch memory of one thread.
struct Workspace {
  std::vector<bf16> keys;     // [kLatent / 2][kBlock][2]
  std::vector<bf16> values;   // [kBlock / 2][kRank][2]
  std::vector<bf16> weights;  // [heads][kBlock]
  std::vector<float> scores;  // [heads][kBlock]
};

/// The calling thread's; OpenMP keeps its threads.
Workspace& workspace(int heads) {
  thread_local Workspace work;
  work.keys.resize(std::size_t{kBlock} * kLatent);
  work.values.resize(std::size_t{kBlock} * kRank);
  work.weights.resize(static_cast<std::size_t>(heads) * kBlock);
  work.scores.resize(static_cast<std::size_t>(heads) * kBlock);
  return work;
}

/// A part of a sequence: sums, maxima and weighted values of its rows.
struct Part {
  std::vector<float> out, max, sum;
};

void pack(const bf16* rows, Workspace& work) {
  for (int row = 0; row < kBlock; row += 16) {
    for (int column = 0; column < kLatent; column += 32) {
      Words square[kLanes];
      for (int i = 0; i < 16; ++i)
        square[i] = _mm512_loadu_si512(rows + (row + i) * kLatent + column);
      cpu::transpose(square);
      for (int i = 0; i < 16; ++i) {
        _mm512_storeu_si512(work.keys.data() + ((column / 2 + i) * kBlock + row) * 2, square[i]);
      }
    }
  }
  const Words begin = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const Words end = _mm512_add_epi16(begin, _mm512_set1_epi16(16));
  for (int row = 0; row < kBlock; row += 2) {
    for (int column = 0; column < kRank; column += 32) {
      const bf16* from = rows + row * kLatent + column;
      const Words first = _mm512_loadu_si512(from);
      const Words second = _mm512_loadu_si512(from + kLatent);
      bf16* to = work.values.data() + row * kRank + 2 * column;
      _mm512_storeu_si512(to, _mm512_permutex2var_epi16(first, begin, second));
      _mm512_storeu_si512(to + 32, _mm512_permutex2var_epi16(first, end, second));
    }
  }
}

/// Scores of a head become weights; the sums so far are scaled to the new maximum.
void soften(const float* scores, bf16* weights, float& max, float& sum, float* out) {
  F32 top = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
  for (int row = 0; row < kBlock; row += 16)
    top = _mm512_max_ps(top, _mm512_loadu_ps(scores + row));
  const float before = max;
  max = std::max(max, _mm512_reduce_max_ps(top) * kScale);
  const F32 all = _mm512_set1_ps(max);
  F32 total = _mm512_setzero_ps();
  for (int row = 0; row < kBlock; row += 16) {
    const F32 weight = cpu::exp_not_positive(
        _mm512_fmsub_ps(_mm512_loadu_ps(scores + row), _mm512_set1_ps(kScale), all));
    total = _mm512_add_ps(total, weight);
    const Words bits = _mm512_castps_si512(weight);
    const Words even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const Words near = _mm512_add_epi32(bits, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(weights + row),
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32(near, 16)));
  }
  const float factor = std::exp(before - max);
  sum = sum * factor + _mm512_reduce_add_ps(total);
  if (factor == 1 || before == -std::numeric_limits<float>::infinity()) return;
  for (int column = 0; column < kRank; column += 16) {
    _mm512_storeu_ps(out + column,
                     _mm512_mul_ps(_mm512_loadu_ps(out + column), _mm512_set1_ps(factor)));
  }
}

void attend(const bf16* query, int heads, const bf16* rows, int count, Workspace& work,
            Part& part) {
  std::ranges::fill(part.max, -std::numeric_limits<float>::infinity());
  std::ranges::fill(part.sum, 0.0F);
  for (int row = 0; row < count; row += kBlock) {
    pack(rows + static_cast<std::ptrdiff_t>(row) * kLatent, work);
    at::native::cpublas::brgemm(heads, kBlock, kLatent, kLatent, kBlock, kBlock, false,
                                halves(query), halves(work.keys.data()), work.scores.data(), true);
    for (int head = 0; head < heads; ++head) {
      soften(work.scores.data() + head * kBlock, work.weights.data() + head * kBlock,
             part.max[head], part.sum[head], part.out.data() + head * kRank);
    }
    at::native::cpublas::brgemm(heads, kRank, kBlock, kBlock, kRank, kRank, row > 0,
                                halves(work.weights.data()), halves(work.values.data()),
                                part.out.data(), true);
  }
  at::native::cpublas::brgemm_release(true);
}

/// Sequences of one length; each is cut into as many parts as keep all threads busy.
class Case {
 public:
  Case(int heads, int length, int threads, int sequences)
      : heads_(heads),
        length_(length),
        threads_(threads),
        splits_(std::max(1, threads / sequences)),
        sequences_(sequences),
        query_(random(sequences, heads, 1)),
        rows_(random(sequences, length, 2)) {
    parts_.resize(static_cast<std::size_t>(sequences * splits_));
    for (Part& part : parts_) {
      part.out.resize(static_cast<std::size_t>(heads) * kRank);
      part.max.resize(static_cast<std::size_t>(heads));
      part.sum.resize(static_cast<std::size_t>(heads));
    }
    out_.resize(static_cast<std::size_t>(sequences * heads) * kRank);
    lse_.resize(static_cast<std::size_t>(sequences * heads));
  }

  void run() {
    const int units = sequences_ * splits_;
#pragma omp parallel for num_threads(threads_) schedule(dynamic, 1)
    for (int unit = 0; unit < units; ++unit) {
      const std::ptrdiff_t sequence = unit / splits_;
      const int blocks = length_ / kBlock;
      const int begin = blocks * (unit % splits_) / splits_ * kBlock;
      const int end = blocks * (unit % splits_ + 1) / splits_ * kBlock;
      attend(query_.data() + sequence * heads_ * kLatent, heads_,
             rows_.data() + (sequence * length_ + begin) * kLatent, end - begin, workspace(heads_),
             parts_[static_cast<std::size_t>(unit)]);
    }
#pragma omp parallel for num_threads(threads_)
    for (int row = 0; row < sequences_ * heads_; ++row) merge(row);
  }

  /// The largest difference from float64, relative to the largest output.
  [[nodiscard]] double error() const {
    double worst = 0;
    for (const int head : {0, heads_ - 1}) {
      std::vector<double> scores(static_cast<std::size_t>(length_));
      std::vector<double> out(kRank);
      double max = -1e300;
      double sum = 0;
      for (int row = 0; row < length_; ++row) {
        double score = 0;
        for (int i = 0; i < kLatent; ++i) {
          score +=
              double{to_float(query_[head * kLatent + i])} * to_float(rows_[row * kLatent + i]);
        }
        scores[row] = score * kScale;
        max = std::max(max, scores[row]);
      }
      for (int row = 0; row < length_; ++row) {
        const double weight = std::exp(scores[row] - max);
        sum += weight;
        for (int i = 0; i < kRank; ++i) out[i] += weight * to_float(rows_[row * kLatent + i]);
      }
      double largest = 0;
      double off = std::abs(lse_[head] - (max + std::log(sum)));
      for (int i = 0; i < kRank; ++i) {
        largest = std::max(largest, std::abs(out[i] / sum));
        off = std::max(off, std::abs(out[i] / sum - out_[head * kRank + i]));
      }
      worst = std::max(worst, off / largest);
    }
    return worst;
  }

 private:
  static std::vector<bf16> random(int sequences, int rows, unsigned seed) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<bf16> table(4096);
    for (bf16& value : table) value = to_bf16(normal(generator));
    std::vector<bf16> all(static_cast<std::size_t>(sequences) * rows * kLatent);
    for (bf16& value : all) value = table[generator() % table.size()];
    return all;
  }
  void merge(int row) {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(row / heads_) * splits_;
    const int head = row % heads_;
    float max = -std::numeric_limits<float>::infinity();
    for (int i = 0; i < splits_; ++i) max = std::max(max, parts_[first + i].max[head]);
    float sum = 0;
    float* out = out_.data() + static_cast<std::ptrdiff_t>(row) * kRank;
    std::fill_n(out, kRank, 0.0F);
    for (int i = 0; i < splits_; ++i) {
      const Part& part = parts_[first + i];
      const float factor = std::exp(part.max[head] - max);
      sum += part.sum[head] * factor;
      for (int c = 0; c < kRank; ++c) out[c] += factor * part.out[head * kRank + c];
    }
    for (int c = 0; c < kRank; ++c) out[c] /= sum;
    lse_[row] = max + std::log(sum);
  }

  int heads_, length_, threads_, splits_, sequences_;
  std::vector<bf16> query_, rows_;  // [sequence][head or row][kLatent]
  std::vector<Part> parts_;
  std::vector<float> out_, lse_;
};

int serve() {
  for (const int threads : {1, 2}) {
    Case small(16, 1024, threads, 1);
    small.run();
    // Weights are rounded to bf16: 2^-9 each, and they are positive.
    if (const double error = small.error(); !(error < 0x1p-7)) {
      std::fprintf(stderr, "brgemm_peer: off by %g from float64\n", error);
      return 1;
    }
  }
  std::printf("ready brgemm of PyTorch %s\n", TRIBUTARY_TORCH_VERSION);
  std::fflush(stdout);
  int heads = 0;
  int length = 0;
  int threads = 0;
  int repetitions = 0;
  int sequences = 0;
  while (std::scanf("%d %d %d %d %d", &heads, &length, &threads, &repetitions, &sequences) == 5) {
    if (heads < 1 || length < kBlock || length % kBlock != 0 || threads < 1 || sequences < 1) {
      std::fprintf(stderr, "brgemm_peer: no case of %d heads and %d rows (a multiple of %d)\n",
                   heads, length, kBlock);
      return 1;
    }
    static std::vector<int> last;
    static std::vector<Case> kept;
    if (const std::vector<int> key{heads, length, threads, sequences}; key != last) {
      kept.clear();
      kept.emplace_back(heads, length, threads, sequences);
      last = key;
    }
    kept.front().run();
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < repetitions; ++i) {
      const auto start = std::chrono::steady_clock::now();
      kept.front().run();
      best = std::min(
          best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::printf("%.9f\n", best);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tributary::bench
TRIBUTARY_AVX512_END

int main() {
  return tributary::bench::serve();
}
