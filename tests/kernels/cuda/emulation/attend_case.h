// Leaves, tasks and queries in host memory for a launch of an attention kernel under emulation, and
// the exact states, by core/reference. Everything that no kernel may use is NaN: unused rows and
// pages, gaps between queries; unused entries of tables are garbage.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "core/interface/backend.h"
#include "core/reference/reference_attend.h"
#include "kernels/cuda/attend/attend.h"
#include "tests/kernels/cuda/emulation/simt.h"

namespace tributary::test {

struct AttendShape {
  int heads = 16;
  int kv_lora_rank = 512;
  int qk_rope_head_dim = 64;
  RowFormat row_format = RowFormat::kBF16;
  DType query_dtype = DType::kBF16;
  std::size_t query_padding = 0;  // bytes between two tokens' queries

  [[nodiscard]] int latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }
};

/// One token's state: `o` [heads][kv_lora_rank], then `lse` [heads].
using State = std::vector<float>;
inline bool same_bits(const State& a, const State& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class AttendCase {
 public:
  AttendCase(const AttendShape& shape, std::uint32_t seed);

  /// Rows of deviation 0.1, as a normalised latent has; returns the leaf's number.
  std::size_t add_leaf(int rows);
  /// The same, with rows moved such that their scores with head 0 of the query are about `scores`.
  std::size_t add_leaf(const std::vector<double>& scores, std::int64_t query);
  /// The same values in other pages.
  std::size_t copy_leaf(std::size_t leaf);
  /// Rows [first, last) of the leaf become infinite.
  void poison(std::size_t leaf, int first, int last);
  /// Rows of a leaf, as a leaf of their own.
  std::size_t add_leaf_of(std::size_t leaf, const std::vector<int>& rows);
  /// Queries of `tokens` consecutive tokens, such that scores with the leaves have this deviation;
  /// returns the first one's record.
  std::int64_t add_queries(int tokens, double score_deviation);
  /// Tokens from record `query` on over a leaf; states get records of their own. The first token
  /// stands at `position` of the leaf, which begins at position 1024 of its sequence. Returns the
  /// task's number.
  std::size_t add_task(std::size_t leaf, std::int64_t query, int tokens, std::int64_t position);

  /// The query attends to these rows of its leaf alone, ascending; some may lie outside of it. A
  /// launch has lists as soon as some query has one, and then every task is of one token with one.
  void select(std::int64_t query, std::vector<int> rows);
  void forget_selections() { lists_.clear(); }

  /// Units go in the tasks' order, instead of the longest first.
  void keep_order() { keep_order_ = true; }
  /// Runs `kernel` over all tasks, by a schedule of units of `unit_rows` over `parts`.
  simt::Counters run(const std::function<void(const cuda::AttendLaunch&)>& kernel, int unit_rows,
                     int parts, unsigned threads, std::size_t shared_bytes,
                     unsigned cluster_blocks = 1);

  /// The same in the fast order: tasks cut anywhere, and the pieces merged by the merge kernel.
  void run_fast(const std::function<void(const cuda::AttendLaunch&)>& kernel, int unit_rows,
                int parts, unsigned threads, std::size_t shared_bytes);

  /// run(), and the merges of the tasks' states in the canonical tree (all see as many tokens):
  /// where they are computed below `level`, by the merge kernel above. The root is where task 0's
  /// states were.
  void run_merged(const std::function<void(const cuda::AttendLaunch&)>& kernel, int level,
                  int unit_rows, int parts, unsigned threads, std::size_t shared_bytes,
                  unsigned cluster_blocks = 1);

  [[nodiscard]] State state(std::size_t task, int token) const;
  [[nodiscard]] ReferenceState exact(std::size_t task, int token) const;
  /// Expects every token of every task near float64, by FlashMLA's bounds: an element within 8e-4
  /// or 2.01/128 of its value, a head's cosine within 5e-6 of 1, lse within 8.01/65536 of its
  /// value. A token that sees nothing must have exactly (0, -inf). Nothing else may be written.
  void expect_near_exact() const;

  [[nodiscard]] const std::vector<LeafTask>& tasks() const noexcept { return tasks_; }
  [[nodiscard]] std::size_t row_bytes() const { return layout_.row_bytes(); }

 private:
  struct LeafRows {
    std::int32_t first_page = 0;
    std::vector<float> values;  // as stored
  };

  [[nodiscard]] std::vector<float> normal(std::size_t count, double deviation);
  void store(const LeafRows& leaf);
  /// Sets the queries, as bytes with NaN between tokens, and the states, all NaN. The caller sets
  /// the rest of the launch.
  [[nodiscard]] cuda::AttendLaunch prepare();
  [[nodiscard]] std::size_t state_floats() const;
  void merge(const std::vector<cuda::MergeTree>& trees, float* scratch);
  std::size_t add_rows(std::vector<float> values);
  [[nodiscard]] std::vector<float> values_of(std::size_t leaf, const std::vector<int>& rows) const;

  static constexpr int kPages = 64;
  static constexpr int kLayers = 2;

  AttendShape shape_;
  CacheLayout layout_;
  float scale_;
  std::mt19937 random_;
  std::vector<std::int32_t> free_pages_;
  std::vector<std::int32_t> block_table_;
  std::vector<std::int32_t> item_layer_;
  std::vector<std::byte> cache_memory_;
  std::size_t cache_begin_ = 0;  // aligned
  bool keep_order_ = false;
  std::vector<LeafRows> leaves_;
  std::vector<std::vector<float>> queries_;  // by record, as stored
  std::vector<std::byte> query_memory_;
  std::map<std::int64_t, std::vector<int>> lists_;  // by record
  std::vector<std::int32_t> list_memory_;
  std::vector<LeafTask> tasks_;
  std::vector<std::size_t> task_leaf_;
  std::int64_t state_records_ = 1;  // record 0 is unused
  std::vector<float> states_;
};

/// Lists of rows of a leaf: all, none, the first, the last, one a page, counts at the borders of
/// tiles and pages, and rows before and behind the leaf.
[[nodiscard]] std::vector<std::vector<int>> selections_of(int rows);

/// Leaves of these lengths, each a task of the same `tokens` tokens, the last of their sequence;
/// expects run(attend_case, level), which is run_merged() of a kernel, to give the same bits
/// whichever merges are done where attention is computed.
template <typename Run>
void expect_bits_of_merges(AttendCase& attend_case, const std::vector<int>& lengths, int tokens,
                           const Run& run) {
  const std::int64_t queries = attend_case.add_queries(tokens, 2);
  for (const int rows : lengths) {
    attend_case.add_task(attend_case.add_leaf(rows), queries, tokens, rows - tokens);
  }
  std::vector<State> expected;
  for (int level = 0; level <= cuda::kMergeLevels; ++level) {
    run(attend_case, level);
    for (int token = 0; token < tokens; ++token) {
      const State got = attend_case.state(0, token);
      if (level == 0) {
        expected.push_back(got);
        continue;
      }
      EXPECT_TRUE(same_bits(got, expected[static_cast<std::size_t>(token)]))
          << "merges below level " << level << ", token " << token;
    }
  }
}

/// Over selected rows of a leaf, by `selected`, tokens have the bits that `dense` gives over a leaf
/// of those rows alone, and are near float64.
template <typename Selected, typename Dense>
void expect_bits_of_leaves_alone(AttendCase& attend_case, const Selected& selected,
                                 const Dense& dense) {
  constexpr int kRows = 300;
  const std::vector<std::vector<int>> lists = selections_of(kRows);
  const std::size_t leaf = attend_case.add_leaf(kRows);
  const std::size_t poisoned = attend_case.copy_leaf(leaf);
  attend_case.poison(poisoned, 0, 1);
  const std::int64_t queries = attend_case.add_queries(static_cast<int>(lists.size()), 2);
  std::vector<std::size_t> tasks;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    const auto query = queries + static_cast<std::int64_t>(i);
    const bool first = std::ranges::count(lists[i], 0) > 0;
    tasks.push_back(attend_case.add_task(first ? leaf : poisoned, query, 1, kRows - 1));
    attend_case.select(query, lists[i]);
  }
  selected(attend_case);
  attend_case.expect_near_exact();
  std::vector<State> expected;
  for (const std::size_t task : tasks) expected.push_back(attend_case.state(task, 0));
  attend_case.forget_selections();
  std::vector<std::size_t> alone;
  for (std::size_t i = 0; i < lists.size(); ++i) {
    std::vector<int> rows;
    for (const int row : lists[i]) {
      if (row >= 0 && row < kRows) rows.push_back(row);
    }
    const auto count = static_cast<std::int64_t>(rows.size());
    alone.push_back(attend_case.add_task(count == 0 ? leaf : attend_case.add_leaf_of(leaf, rows),
                                         queries + static_cast<std::int64_t>(i), 1, count - 1));
  }
  dense(attend_case);
  for (std::size_t i = 0; i < lists.size(); ++i) {
    EXPECT_TRUE(same_bits(attend_case.state(alone[i], 0), expected[i])) << "selection " << i;
  }
}

/// Rows that are not finite, at the end of a leaf, change nothing for the tokens before them.
template <typename Run>
void expect_no_poison(AttendCase& attend_case, const Run& run) {
  const std::size_t leaf = attend_case.add_leaf(70);
  const std::size_t clean = attend_case.copy_leaf(leaf);
  attend_case.poison(leaf, 62, 70);
  const std::int64_t queries = attend_case.add_queries(4, 1);
  const std::size_t together = attend_case.add_task(leaf, queries, 4, 60);  // see 61 to 64
  const std::size_t apart = attend_case.add_task(clean, queries, 4, 60);
  run(attend_case);
  for (int token = 0; token < 4; ++token) {
    const State got = attend_case.state(together, token);
    if (token < 2) {
      EXPECT_TRUE(same_bits(got, attend_case.state(apart, token))) << "token " << token;
    } else {
      EXPECT_FALSE(std::isfinite(got.back())) << "token " << token;
    }
  }
}

}  // namespace tributary::test
