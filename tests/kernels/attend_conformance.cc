// Attention over leaves against float64: shapes, types, lengths, causal bounds, hard inputs.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

// Every row, token and head of one task against float64.
void check_task(LatentCase& latents, const Leaf& leaf, const LeafTask& task,
                const std::vector<float>& queries, Arithmetic arithmetic) {
  const std::vector<double> exact_queries = rounded(queries, latents.shape().query_dtype);
  const std::vector<float> states =
      latents.attend({task}, queries, static_cast<std::size_t>(task.state + task.tokens));
  for (std::int32_t token = 0; token < task.tokens; ++token) {
    const std::int64_t bound = task.query_position + token + 1 - task.leaf_begin;
    const int visible = static_cast<int>(std::clamp<std::int64_t>(bound, 0, task.rows));
    for (int head = 0; head < latents.shape().heads; ++head) {
      const auto record = static_cast<std::size_t>(task.query + token);
      expect_state(latents.shape(), states, static_cast<std::size_t>(task.state + token), head,
                   latents.exact(leaf, exact_queries, record, head, visible), visible, arithmetic);
    }
  }
}

std::size_t size(int a, int b = 1, int c = 1) {
  return static_cast<std::size_t>(a) * static_cast<std::size_t>(b) * static_cast<std::size_t>(c);
}

TEST_P(BackendConformance, AttendOfEveryShapeAndTypeIsNearFloat64) {
  // DeepSeek's; no vector's multiple; one element; no rope part; a width of one panel and a bit;
  // few heads and many; columns that are a multiple of few numbers; three KV heads of 64 as one
  // latent; no rope part in a multiple of every vector.
  const LatentShape shapes[] = {{512, 64, 5}, {96, 16, 7}, {100, 7, 3},   {1, 1, 1},
                                {33, 0, 2},   {66, 6, 13}, {512, 64, 1},  {128, 64, 4},
                                {64, 16, 70}, {32, 18, 2}, {192, 192, 9}, {64, 0, 4}};
  std::uint32_t seed = 1;
  for (LatentShape shape : shapes) {
    for (const RowFormat row : {RowFormat::kBF16, RowFormat::kF32}) {
      for (const DType query : {DType::kBF16, DType::kF32}) {
        shape.row_format = row;
        shape.query_dtype = query;
        Normal normal(++seed);
        LatentCase latents(backend(), shape, 8, seed);
        // Borders of pages and one row.
        for (const int rows : {1, 63, 64, 129}) {
          const Leaf leaf = latents.add_leaf(normal.floats(size(rows, shape.latent_dim())));
          const LeafTask task{
              .tokens = 1, .rows = rows, .first_page = leaf.first_page, .query_position = rows};
          check_task(latents, leaf, task, normal.floats(size(shape.heads, shape.latent_dim())),
                     GetParam().arithmetic);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(BackendConformance, AttendFollowsTheCausalBound) {
  const LatentShape shape{.kv_lora_rank = 64, .qk_rope_head_dim = 8, .heads = 2};
  Normal normal(7);
  LatentCase latents(backend(), shape, 4, 7);
  const int rows = 130;
  const Leaf leaf = latents.add_leaf(normal.floats(size(rows, shape.latent_dim())));
  const std::vector<float> queries =
      normal.floats(size(kMaxStepTokens + 3, shape.heads, shape.latent_dim()));
  const std::int64_t leaf_begin = 4096;
  // Tokens before the leaf, over its first row, inside, over a page border, over its last row, and
  // all beyond it; sees nothing at all in the first case.
  for (const std::int64_t first : {-40, -16, -5, 0, 10, 56, 120, 4000}) {
    for (const std::int32_t tokens : {1, 5, kMaxStepTokens}) {
      const LeafTask task{.tokens = tokens,
                          .rows = rows,
                          .first_page = leaf.first_page,
                          .leaf_begin = leaf_begin,
                          .query_position = leaf_begin + first,
                          .query = 3,
                          .state = 2};
      check_task(latents, leaf, task, queries, GetParam().arithmetic);
    }
  }
}

// Rows whose score with every query of `direction` is what the test wants: k = s * q / |q|^2 /
// scale plus noise that is small against it.
std::vector<float> rows_with_scores(const LatentCase& latents, const std::vector<float>& direction,
                                    const std::vector<double>& scores, Normal& normal) {
  const auto latent = static_cast<std::size_t>(latents.shape().latent_dim());
  double norm = 0;
  for (const float x : direction) norm += static_cast<double>(x) * x;
  std::vector<float> rows = normal.floats(scores.size() * latent, 0.01);
  for (std::size_t r = 0; r < scores.size(); ++r) {
    const double factor = scores[r] / norm / static_cast<double>(latents.softmax_scale());
    for (std::size_t c = 0; c < latent; ++c) {
      rows[r * latent + c] += static_cast<float>(factor * direction[c]);
    }
  }
  return rows;
}

TEST_P(BackendConformance, AttendOfHardScoresIsNearFloat64) {
  const LatentShape shape{.kv_lora_rank = 128, .qk_rope_head_dim = 16, .heads = 3};
  Normal normal(11);
  LatentCase latents(backend(), shape, 64, 11);
  const int rows = 300;
  const auto latent = static_cast<std::size_t>(shape.latent_dim());
  const std::vector<float> direction = normal.floats(latent);
  std::vector<float> queries;
  for (int head = 0; head < shape.heads; ++head) {
    queries.insert(queries.end(), direction.begin(), direction.end());
  }
  std::vector<std::vector<double>> cases;
  for (const double deviation : {2.0, 8.0}) {
    const std::vector<float> scores = normal.floats(size(rows), deviation);
    cases.emplace_back(scores.begin(), scores.end());
  }
  // The maximum rises with every row: each block rescales all before it.
  auto& rising = cases.emplace_back(size(rows));
  for (std::size_t r = 0; r < rising.size(); ++r) rising[r] = 0.3 * static_cast<double>(r) - 20;
  // And falls: later blocks must not disturb.
  cases.emplace_back(rising.rbegin(), rising.rend());
  // One token outweighs all others: first, inside, last.
  for (const std::size_t at : {std::size_t{0}, std::size_t{100}, std::size_t{299}}) {
    cases.emplace_back(size(rows), -30.0)[at] = 60.0;
  }
  // Weights that underflow, all of them equal.
  cases.emplace_back(size(rows), -200.0);
  for (const std::vector<double>& scores : cases) {
    const Leaf leaf = latents.add_leaf(rows_with_scores(latents, direction, scores, normal));
    const LeafTask task{
        .tokens = 1, .rows = rows, .first_page = leaf.first_page, .query_position = rows};
    check_task(latents, leaf, task, queries, GetParam().arithmetic);
  }
}

}  // namespace
}  // namespace tributary::test
