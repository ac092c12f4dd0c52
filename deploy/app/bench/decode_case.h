// A batch of sequences in a cache and the call that attends to all of them: DeepSeek's 512 + 64,
// rows of any format, bf16 queries, pages in random places, states written with their lse.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/interface/backend.h"

namespace tributary::bench {

inline constexpr int kRank = 512;
inline constexpr int kRope = 64;
inline constexpr int kLatent = kRank + kRope;
inline constexpr int kLeafTokens = 2048;

/// So many layers of `rows` rows that a row comes from memory when they have all been read, as in a
/// pool, whose steps pass all layers of its model: 128 MiB of them, at most 256.
[[nodiscard]] int layers_from_memory(std::int64_t rows, const RowLayout& row);

/// One decode step of a batch of sequences.
class DecodeCase {
 public:
  /// `lengths` count the new tokens, of which each sequence has `tokens`. attend() takes `layers`
  /// in turns.
  DecodeCase(Backend& backend, int heads, int tokens, std::span<const int> lengths,
             int leaf_tokens = kLeafTokens, RowFormat format = RowFormat::kBF16, int layers = 1);

  /// Computes the states of all leaves.
  void attend();
  /// Merges each sequence's leaves in the fixed binary tree. Call it once for each attend().
  void merge();

  /// Levels of those trees, and bytes of the resulting states.
  [[nodiscard]] std::size_t merge_levels() const noexcept { return merges_.size(); }
  [[nodiscard]] double merged_bytes() const noexcept;
  [[nodiscard]] std::size_t leaves() const noexcept { return tasks_.size(); }

  /// A (row, head, token) is 2 (2 kRank + kRope) FLOP.
  [[nodiscard]] double gflop() const noexcept { return gflop_; }
  /// Cache rows, each read once.
  [[nodiscard]] double gigabytes() const noexcept { return gigabytes_; }

 private:
  Backend& backend_;
  std::unique_ptr<Cache> cache_;
  std::vector<std::int32_t> block_table_;
  std::vector<std::int32_t> item_layer_;
  std::vector<LeafTask> tasks_;
  std::vector<std::vector<MergeOp>> merges_;  // levels, from the leaves up
  std::unique_ptr<Buffer> queries_, states_;
  AttendArgs args_;
  StateShape shape_;
  int layers_;
  double gflop_ = 0, gigabytes_ = 0;
};

}  // namespace tributary::bench
