// Dense attention of the prefill against float64, and its chunks merged against the whole.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

struct DenseShape {
  int tokens, keys, heads, nope, rope, v;
};

struct DenseInput {
  DenseInput(const DenseShape& shape, std::uint32_t seed) {
    Normal normal(seed);
    const auto count = [](int a, int b, int c) {
      return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) *
             static_cast<std::size_t>(c);
    };
    q = normal.floats(count(shape.tokens, shape.heads, shape.nope + shape.rope));
    kv = normal.floats(count(shape.keys, shape.heads, shape.nope + shape.v));
    k_pe = normal.floats(count(shape.keys, 1, shape.rope));
  }
  std::vector<float> q, kv, k_pe;
};

class DenseCase {
 public:
  DenseCase(Backend& backend, const DenseShape& shape, std::uint32_t seed)
      : backend_(backend),
        shape_(shape),
        input_(shape, seed),
        scale_(1.0F / std::sqrt(static_cast<float>(shape.nope + shape.rope))) {}

  // Records of tokens [begin, end) over keys [key_begin, key_end).
  [[nodiscard]] std::vector<float> attend(int begin, int end, int key_begin, int key_end,
                                          std::int64_t query_position, std::int64_t key_position) {
    const auto slice = [&](const std::vector<float>& all, int from, int to, int width) {
      const std::vector<float> part(all.begin() + static_cast<std::ptrdiff_t>(from) * width,
                                    all.begin() + static_cast<std::ptrdiff_t>(to) * width);
      auto buffer = backend_.allocate(part.size() * sizeof(float));
      backend_.upload(buffer->data(), std::as_bytes(std::span(part)));
      return buffer;
    };
    const auto q = slice(input_.q, begin, end, shape_.heads * (shape_.nope + shape_.rope));
    const auto kv = slice(input_.kv, key_begin, key_end, shape_.heads * (shape_.nope + shape_.v));
    const auto k_pe = slice(input_.k_pe, key_begin, key_end, shape_.rope);
    std::vector<float> states(static_cast<std::size_t>(end - begin) * state().record_floats(),
                              std::numeric_limits<float>::quiet_NaN());
    const auto buffer = backend_.allocate(states.size() * sizeof(float));
    backend_.call(DenseAttendArgs{.tokens = end - begin,
                                  .keys = key_end - key_begin,
                                  .heads = shape_.heads,
                                  .qk_nope_head_dim = shape_.nope,
                                  .qk_rope_head_dim = shape_.rope,
                                  .v_head_dim = shape_.v,
                                  .query_position = query_position + begin,
                                  .key_position = key_position + key_begin,
                                  .softmax_scale = scale_,
                                  .q = q->as<float>(),
                                  .kv = kv->as<float>(),
                                  .k_pe = k_pe->as<float>(),
                                  .states = buffer->as<float>()});
    backend_.download(std::as_writable_bytes(std::span(states)), buffer->data());
    return states;
  }

  [[nodiscard]] ExactState exact(int token, int head, int visible) const {
    ExactState result{.o = std::vector<double>(static_cast<std::size_t>(shape_.v)),
                      .lse = -std::numeric_limits<double>::infinity()};
    const int depth = shape_.nope + shape_.rope;
    const float* q = &input_.q[static_cast<std::size_t>((token * shape_.heads + head) * depth)];
    std::vector<double> scores;
    const auto row = [&](int key) {
      return &input_.kv[static_cast<std::size_t>((key * shape_.heads + head) *
                                                 (shape_.nope + shape_.v))];
    };
    for (int key = 0; key < visible; ++key) {
      double score = 0;
      for (int i = 0; i < shape_.nope; ++i) score += static_cast<double>(q[i]) * row(key)[i];
      for (int i = 0; i < shape_.rope; ++i) {
        score += static_cast<double>(q[shape_.nope + i]) *
                 input_.k_pe[static_cast<std::size_t>(key * shape_.rope + i)];
      }
      scores.push_back(score * static_cast<double>(scale_));
      result.largest_score = std::max(result.largest_score, std::abs(scores.back()));
    }
    if (visible == 0) return result;
    double sum = 0;
    for (const double score : scores) sum += std::exp(score);
    for (int key = 0; key < visible; ++key) {
      for (std::size_t c = 0; c < result.o.size(); ++c) {
        result.o[c] += std::exp(scores[static_cast<std::size_t>(key)]) / sum *
                       row(key)[static_cast<std::size_t>(shape_.nope) + c];
      }
    }
    result.lse = std::log(sum);
    return result;
  }

  [[nodiscard]] StateShape state() const { return {shape_.heads, shape_.v}; }
  // For expect_state: a latent of the same length of dot products and width.
  [[nodiscard]] LatentShape latent() const {
    return {.kv_lora_rank = shape_.v,
            .qk_rope_head_dim = std::max(0, shape_.nope + shape_.rope - shape_.v),
            .heads = shape_.heads,
            .row_format = RowFormat::kF32,
            .query_dtype = DType::kF32};
  }

 private:
  Backend& backend_;
  DenseShape shape_;
  DenseInput input_;
  float scale_;
};

TEST_P(BackendConformance, DenseAttendIsNearFloat64) {
  std::uint32_t seed = 90;
  // More tokens than a unit of work takes; keys that are no block's multiple; tails everywhere.
  for (const DenseShape& shape : {DenseShape{140, 140, 2, 16, 8, 24},
                                  {3, 200, 3, 33, 6, 70},
                                  {5, 1, 1, 1, 0, 1},
                                  {4, 70, 2, 0, 6, 5}}) {
    DenseCase dense(backend(), shape, ++seed);
    // Queries at, before and after the keys' positions.
    for (const std::int64_t ahead : {-3, 0, 1, 1000}) {
      const std::int64_t key_position = 500;
      const auto states =
          dense.attend(0, shape.tokens, 0, shape.keys, key_position + ahead, key_position);
      for (int token = 0; token < shape.tokens; ++token) {
        const int visible =
            static_cast<int>(std::clamp<std::int64_t>(ahead + token + 1, 0, shape.keys));
        for (int head = 0; head < shape.heads; ++head) {
          expect_state(dense.latent(), states, static_cast<std::size_t>(token), head,
                       dense.exact(token, head, visible), visible, GetParam().arithmetic);
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST_P(BackendConformance, DenseAttendOfATokenDoesNotDependOnTheOthers) {
  const DenseShape shape{133, 150, 2, 20, 8, 30};
  DenseCase dense(backend(), shape, 95);
  const auto all = dense.attend(0, shape.tokens, 0, shape.keys, 10, 0);
  const auto record = static_cast<std::ptrdiff_t>(dense.state().record_floats());
  for (const int token : {0, 1, 64, 127, 128, 132}) {
    const auto alone = dense.attend(token, token + 1, 0, shape.keys, 10, 0);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), all.begin() + token * record)) << token;
    // A key that a token does not see is as good as absent.
    const int visible = std::min(shape.keys, 10 + token + 1);
    const auto fewer = dense.attend(token, token + 1, 0, visible, 10, 0);
    EXPECT_TRUE(std::equal(fewer.begin(), fewer.end(), alone.begin())) << token;
  }
}

TEST_P(BackendConformance, DenseAttendOfChunksMergesToTheWhole) {
  const DenseShape shape{6, 100, 2, 16, 8, 12};
  DenseCase dense(backend(), shape, 96);
  std::vector<float> states = dense.attend(0, 6, 0, 70, 94, 0);
  const auto second = dense.attend(0, 6, 70, 100, 94, 0);
  states.insert(states.end(), second.begin(), second.end());
  const auto buffer = device(states);
  const std::vector<MergeOp> ops{{.dst = 0, .left = 0, .right = 6, .tokens = 6}};
  backend().call(MergeArgs{.ops = ops, .shape = dense.state(), .states = buffer->as<float>()});
  const std::vector<float> merged = host<float>(*buffer);
  for (int token = 0; token < shape.tokens; ++token) {
    for (int head = 0; head < shape.heads; ++head) {
      // The merge rounds too: the bound of fp32, which float64 with one rounding in between meets.
      expect_state(dense.latent(), merged, static_cast<std::size_t>(token), head,
                   dense.exact(token, head, 95 + token), 95 + token, Arithmetic::kFloat32);
    }
  }
}

TEST_P(BackendConformance, DenseAttendWithoutKeysIsEmpty) {
  const DenseShape shape{2, 3, 2, 4, 2, 5};
  DenseCase dense(backend(), shape, 97);
  const auto states = dense.attend(0, 2, 0, 0, 5, 0);
  for (int token = 0; token < 2; ++token) {
    for (int head = 0; head < shape.heads; ++head) {
      expect_state(dense.latent(), states, static_cast<std::size_t>(token), head,
                   dense.exact(token, head, 0), 0, GetParam().arithmetic);
    }
  }
}

}  // namespace
}  // namespace tributary::test
