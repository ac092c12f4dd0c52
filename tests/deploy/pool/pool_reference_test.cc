// A pool's outputs against attention in float64 over the whole sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/reference/reference_state.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

struct ReferenceCase {
  const char* name;
  bool fp32;  // the backend computes in fp32, else in float64 with results rounded to fp32
  double score_deviation;
};

/// Largest errors of one head's output and lse, to first order in u = 2^-24.
struct Bound {
  double o = 0, lse = 0;
};

/// With S >= |score| for all rows, n rows in L leaves of 64 rows, D = ceil(log2 L) merges over
/// each:
/// - a leaf's lse is off by the scores' error, (d + 2) u S for dot products of length d and the
///   scale, by the rounding of score - maximum, 2 S u, by exp and the sum of 64 weights, (4 + 64)
///   u, all of these in fp32 only; and by its own rounding, (S + ln n) u;
/// - each merge adds the rounding of exp, sum and log, 4 u, and of the new lse, (S + ln n) u;
/// - weights that are off by a share e in either direction move a mean of values up to v by at most
///   2 e v: once in the leaf and once in every merge, each of which rounds 6 times besides.
Bound bound_of(bool fp32, double score, double largest_value, int depth, std::int64_t rows,
               int latent_dim) {
  const double u = 0x1p-24;
  const double magnitude = score + std::log(static_cast<double>(rows));
  const double leaf = fp32 ? ((latent_dim + 2) + 2) * u * score + 68 * u : 0;
  const double lse = leaf + magnitude * u + depth * (4 + magnitude) * u;
  return {.o = 2 * largest_value * (depth + 1) * (lse + 6 * u), .lse = lse};
}

class PoolReference : public testing::TestWithParam<ReferenceCase> {};

TEST_P(PoolReference, OutputsAreWithinTheDerivedBound) {
  PoolSetup setup;
  setup.workers = 3;
  setup.spread = SpreadPolicy::kAll;
  AttentionShape& shape = setup.shape;
  // A query element has deviation 0.5, a row's 1.
  shape.softmax_scale =
      static_cast<float>(GetParam().score_deviation / (0.5 * std::sqrt(shape.latent_dim())));
  setup.backend = [](int) {
    return GetParam().fp32 ? make_cpu_backend({}) : make_reference_backend();
  };
  const auto outputs =
      run_pool(setup, [](PoolLeader& leader) {
        leader.decode(border_requests(), {.tokens = [](std::int64_t, std::int64_t) { return 7; }});
      }).outputs;

  const auto rank = static_cast<std::size_t>(shape.kv_lora_rank);
  const auto heads = static_cast<std::size_t>(shape.heads);
  const auto width = static_cast<std::size_t>(shape.latent_dim());
  std::size_t checked = 0;
  for (const auto& [token, state] : outputs) {
    const auto& [tag, layer, position] = token;
    if (position % 3 != 0) continue;
    std::vector<float> rows;
    for (std::int64_t p = 0; p <= position; ++p) {
      const auto row = pool_row(shape, tag, layer, p);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const auto query = pool_query(shape, tag, layer, position);
    const ReferenceState expected = reference_attend(
        shape.heads, shape.kv_lora_rank, shape.qk_rope_head_dim,
        static_cast<double>(shape.softmax_scale), std::vector<double>(query.begin(), query.end()),
        std::span<const float>(rows));
    double largest = 0;
    for (const float value : rows) largest = std::max(largest, std::abs(double{value}));
    const int depth = std::bit_width(static_cast<std::uint64_t>(position / 64));
    for (std::size_t h = 0; h < heads; ++h) {
      double score = 0;
      for (std::size_t j = 0; j < rows.size(); j += width) {
        double sum = 0;
        for (std::size_t i = 0; i < width; ++i) {
          sum += std::abs(double{query[h * width + i]} * double{rows[j + i]});
        }
        score = std::max(score, sum * double{shape.softmax_scale});
      }
      const Bound bound =
          bound_of(GetParam().fp32, score, largest, depth, position + 1, shape.latent_dim());
      ASSERT_NEAR(state[heads * rank + h], expected.lse[h], bound.lse)
          << "tag " << tag << ", position " << position;
      for (std::size_t i = 0; i < rank; ++i) {
        ASSERT_NEAR(state[h * rank + i], expected.o[h * rank + i], bound.o)
            << "tag " << tag << ", position " << position;
      }
      ++checked;
    }
  }
  EXPECT_GT(checked, 100U);
}

INSTANTIATE_TEST_SUITE_P(, PoolReference,
                         testing::Values(ReferenceCase{"Float64Soft", false, 0.5},
                                         ReferenceCase{"Float64Hard", false, 8},
                                         ReferenceCase{"Fp32Soft", true, 0.5},
                                         ReferenceCase{"Fp32Deviation2", true, 2},
                                         ReferenceCase{"Fp32Deviation8", true, 8}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tributary
