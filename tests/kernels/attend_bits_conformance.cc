// The bits of attention do not depend on other tokens, other tasks, their order, pages, or rows
// that are not seen.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/core/base/expect_error.h"
#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

constexpr LatentShape kOddShape{.kv_lora_rank = 96, .qk_rope_head_dim = 20, .heads = 5};
constexpr std::size_t kQuerySize = std::size_t{5} * 116;

std::vector<float> leaf_rows(Normal& normal, int rows) {
  return normal.floats(static_cast<std::size_t>(rows) *
                       static_cast<std::size_t>(kOddShape.latent_dim()));
}

// One state record of many.
std::vector<float> record(const std::vector<float>& states, std::size_t index,
                          const LatentShape& shape = kOddShape) {
  const auto size = static_cast<std::ptrdiff_t>(shape.state().record_floats());
  const auto begin = states.begin() + static_cast<std::ptrdiff_t>(index) * size;
  return {begin, begin + size};
}

// Equality of bits, not of values: NaN equals NaN, 0 does not equal -0.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(BackendConformance, AttendOfManyTokensEqualsOneAtATime) {
  Normal normal(3);
  LatentCase latents(backend(), kOddShape, 4, 3);
  const int rows = 150;
  const Leaf leaf = latents.add_leaf(leaf_rows(normal, rows));
  const std::vector<float> queries = normal.floats(kMaxStepTokens * kQuerySize);
  // Positions such that some tokens see everything, some part of a page, some nothing.
  for (const std::int64_t position : {-8, 60, 140, 1000}) {
    const std::int64_t leaf_begin = 64;
    LeafTask task{.rows = rows,
                  .first_page = leaf.first_page,
                  .leaf_begin = leaf_begin,
                  .query_position = leaf_begin + position};
    std::vector<std::vector<float>> alone;
    for (std::int32_t token = 0; token < kMaxStepTokens; ++token) {
      LeafTask one = task;
      one.tokens = 1;
      one.query_position += token;
      one.query = token;
      alone.push_back(latents.attend({one}, queries, 1));
    }
    for (std::int32_t tokens = 1; tokens <= kMaxStepTokens; ++tokens) {
      task.tokens = tokens;
      const auto states = latents.attend({task}, queries, static_cast<std::size_t>(tokens));
      for (std::size_t token = 0; token < static_cast<std::size_t>(tokens); ++token) {
        EXPECT_TRUE(same_bits(record(states, token), alone[token]))
            << "token " << token << " of " << tokens << ", position " << position;
      }
    }
  }
}

TEST_P(BackendConformance, AttendOfManyHeadsHasTheBitsOfEachTokenAlone) {
  // So many heads that another kernel than the few-rows one runs and tokens are cut into several
  // units of work. Rows fill several blocks, the last one with an odd number.
  LatentShape shape = kOddShape;
  shape.heads = 44;
  Normal normal(13);
  LatentCase latents(backend(), shape, 8, 13);
  const int rows = 333;
  const auto latent = static_cast<std::size_t>(shape.latent_dim());
  // The last two rows are seen by the last tokens alone, and would poison the others.
  std::vector<float> values = normal.floats(static_cast<std::size_t>(rows) * latent);
  std::fill(values.end() - static_cast<std::ptrdiff_t>(2 * latent), values.end(),
            std::numeric_limits<float>::infinity());
  const Leaf leaf = latents.add_leaf(values);
  constexpr std::int32_t kTokens = 7;
  const std::vector<float> queries =
      normal.floats(kTokens * static_cast<std::size_t>(shape.heads) * latent);
  LeafTask task{.tokens = kTokens,
                .rows = rows,
                .first_page = leaf.first_page,
                .query_position = rows - kTokens};
  const std::vector<float> together = latents.attend({task}, queries, kTokens);
  for (std::int32_t token = 0; token < kTokens; ++token) {
    LeafTask one = task;
    one.tokens = 1;
    one.query = token;
    one.query_position += token;
    one.rows = rows - kTokens + token + 1;  // only the rows that it sees
    const auto alone = latents.attend({one}, queries, 1);
    const std::vector<float> got = record(together, static_cast<std::size_t>(token), shape);
    EXPECT_TRUE(same_bits(got, record(alone, 0, shape))) << "token " << token;
    if (token + 2 < kTokens) {
      for (const float value : got) ASSERT_TRUE(std::isfinite(value)) << "token " << token;
    }
  }
}

TEST_P(BackendConformance, AttendOfAMaskedRowEqualsThatOfAnAbsentOne) {
  Normal normal(4);
  LatentCase latents(backend(), kOddShape, 16, 4);
  const std::vector<float> rows = leaf_rows(normal, 140);
  const std::vector<float> queries = normal.floats(kMaxStepTokens * kQuerySize);
  for (const int visible : {1, 5, 63, 64, 65, 100, 128, 139}) {
    const auto cut = static_cast<std::ptrdiff_t>(visible) * kOddShape.latent_dim();
    const Leaf absent = latents.add_leaf({rows.begin(), rows.begin() + cut});
    LeafTask task{
        .tokens = 1, .rows = visible, .first_page = absent.first_page, .query_position = 100000};
    const std::vector<float> expected = latents.attend({task}, queries, 1);
    // The same rows, and further rows of infinities that the first token must not see. If there are
    // other tokens, those see them.
    std::vector<float> poisoned = rows;
    std::fill(poisoned.begin() + cut, poisoned.end(), std::numeric_limits<float>::infinity());
    LatentCase other(backend(), kOddShape, 4, 5);
    const Leaf masked = other.add_leaf(poisoned);
    task.rows = 140;
    task.first_page = masked.first_page;
    task.query_position = visible - 1;
    for (const std::int32_t tokens : {1, 2, 16}) {
      task.tokens = tokens;
      const std::vector<float> states =
          other.attend({task}, queries, static_cast<std::size_t>(tokens));
      EXPECT_TRUE(same_bits(record(states, 0), expected))
          << visible << " rows, " << tokens << " tokens";
    }
  }
}

TEST_P(BackendConformance, AttendDoesNotDependOnPagesOrderOrBatch) {
  Normal normal(6);
  const std::vector<float> queries = normal.floats(6 * kQuerySize);
  std::vector<std::vector<float>> leaves;
  for (const int rows : {1, 64, 90, 200}) leaves.push_back(leaf_rows(normal, rows));
  std::vector<std::vector<float>> expected;
  // Seeds give other pages; an even one gives all tasks in one call, backwards and with records of
  // queries further apart, an odd one each task in its own call.
  for (std::uint32_t seed = 20; seed < 24; ++seed) {
    LatentCase latents(backend(), kOddShape, 20, seed);
    std::vector<LeafTask> tasks;
    for (std::size_t i = 0; i < leaves.size(); ++i) {
      const Leaf leaf = latents.add_leaf(leaves[i]);
      tasks.push_back({.tokens = i % 2 == 0 ? 1 : 3,
                       .rows = leaf.rows,
                       .first_page = leaf.first_page,
                       .leaf_begin = 0,
                       .query_position = leaf.rows - 1,
                       .query = static_cast<std::int64_t>(i),
                       .state = static_cast<std::int64_t>(i) * 3});
    }
    std::vector<std::vector<float>> got(tasks.size());
    if (seed % 2 == 0) {
      std::ranges::reverse(tasks);
      const std::vector<float> states = latents.attend(tasks, queries, 12, 0, 64);
      for (std::size_t i = 0; i < tasks.size(); ++i) got[i] = record(states, i * 3);
    } else {
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        got[i] = record(latents.attend({tasks[i]}, queries, 12), i * 3);
      }
    }
    if (expected.empty()) expected = got;
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      EXPECT_TRUE(same_bits(got[i], expected[i])) << "leaf " << i << ", seed " << seed;
    }
  }
}

TEST_P(BackendConformance, AttendTakesRowsOfTheItemsLayerAndWritesItsRecordsAlone) {
  LatentShape shape = kOddShape;
  shape.layers = 3;
  Normal normal(8);
  const std::vector<float> query = normal.floats(kQuerySize);
  const std::vector<float> rows = leaf_rows(normal, 70);
  std::vector<std::vector<float>> by_layer;
  for (int layer = 0; layer < shape.layers; ++layer) {
    // Everything but the leaf, in its own layer, is NaN.
    LatentCase latents(backend(), shape, 3, 9);
    const Leaf leaf = latents.add_leaf(rows, layer);
    const LeafTask task{
        .tokens = 1, .rows = 70, .first_page = leaf.first_page, .query_position = 70, .state = 1};
    const std::vector<float> states = latents.attend({task}, query, 3, layer);
    for (const std::size_t untouched : {std::size_t{0}, std::size_t{2}}) {
      for (const float value : record(states, untouched)) ASSERT_TRUE(std::isnan(value));
    }
    by_layer.push_back(record(states, 1));
    for (const float value : by_layer.back()) ASSERT_TRUE(std::isfinite(value));
    EXPECT_TRUE(same_bits(by_layer.back(), by_layer.front())) << "layer " << layer;
  }
}

TEST_P(BackendConformance, AttendWithMergesHasTheBitsOfBoth) {
  for (const LatentShape& shape : {kOddShape, LatentShape{512, 64, 16}}) {
    Normal normal(19);
    LatentCase latents(backend(), shape, 16, 19);
    std::vector<LeafTask> tasks;
    for (std::int32_t leaf = 0; leaf < 5; ++leaf) {
      const int rows = 90 - leaf;
      tasks.push_back(
          {.tokens = 2,
           .rows = rows,
           .first_page =
               latents.add_leaf(normal.floats(static_cast<std::size_t>(rows * shape.latent_dim())))
                   .first_page,
           .query_position = 88,
           .state = 2 * leaf});
    }
    // The canonical tree of five leaves, into records 10 and 11.
    const std::vector<MergeOp> ops{
        {0, 0, 2, 2, 0}, {4, 4, 6, 2, 0}, {0, 0, 4, 2, 1}, {10, 0, 8, 2, 2}};
    const std::vector<float> queries =
        normal.floats(static_cast<std::size_t>(2 * shape.heads * shape.latent_dim()));
    const auto query_bytes = to_bytes(queries, shape.query_dtype);
    const auto query_memory = device(query_bytes);
    const auto states = device(std::vector<float>(12 * shape.state().record_floats()));
    const std::vector<std::int32_t> item_layer{0};
    const AttendArgs attend{.cache = &latents.cache(),
                            .tasks = tasks,
                            .block_table = latents.block_table(),
                            .item_layer = item_layer,
                            .queries = query_memory->data(),
                            .query_stride_bytes = query_bytes.size() / 2,
                            .query_dtype = shape.query_dtype,
                            .heads = shape.heads,
                            .softmax_scale = latents.softmax_scale(),
                            .states = states->as<float>()};
    const MergeArgs merge{
        .ops = ops, .shape = shape.state(), .states = states->as<float>(), .levels = 3};
    backend().call(attend);
    backend().call(merge);
    const auto apart = host<float>(*states);
    const std::vector<float> zeros(apart.size());
    backend().upload(states->data(), std::as_bytes(std::span(zeros)));
    backend().call(AttendMergeArgs{attend, merge});
    const auto together = host<float>(*states);
    for (const std::size_t i : {10U, 11U}) {
      EXPECT_TRUE(same_bits(record(together, i, shape), record(apart, i, shape))) << i;
    }
    MergeArgs other = merge;
    other.shape.heads += 1;
    EXPECT_EQ(code_of([&] {
                backend().call(AttendMergeArgs{attend, other});
              }),
              ErrorCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace tributary::test
