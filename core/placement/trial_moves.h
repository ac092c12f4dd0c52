// Moves that are only tried: the load of a pool after them.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/placement/leaf_move.h"
#include "core/placement/pool_load.h"

namespace tributary {

class TrialMoves {
 public:
  /// `load` has all sequences whose leaves are moved.
  TrialMoves(PoolLoad load, int leaf_tokens) : load_(std::move(load)), leaf_tokens_(leaf_tokens) {}

  [[nodiscard]] const PoolLoad& load() const noexcept { return load_; }
  [[nodiscard]] std::int32_t owner(const Sequence& s, std::int64_t leaf) const;
  /// Runs of neighbouring leaves with one owner.
  [[nodiscard]] std::size_t runs(const Sequence& s) const;
  /// Whether the target of moves of one sequence has the pages.
  [[nodiscard]] bool fits(const Sequence& s, std::span<const LeafMove> moves) const;
  /// Moves leaves of one sequence.
  void apply(const Sequence& s, std::span<const LeafMove> moves);
  /// Takes the last apply() back; once.
  void undo();

 private:
  [[nodiscard]] std::int64_t pages_of(const Sequence& s, std::int64_t leaf) const;
  [[nodiscard]] std::vector<LeafRun> runs_now(const Sequence& s) const;
  void set_owner(const Sequence& s, std::int64_t leaf, std::int32_t owner);

  PoolLoad load_;
  int leaf_tokens_;
  std::unordered_map<SequenceId, std::vector<std::int32_t>> owners_;  // of those that were moved
  struct Moved {
    const Sequence* sequence = nullptr;
    std::vector<std::pair<std::int64_t, std::int32_t>> leaves;  // with the former owner
    std::vector<LeafRun> before, after;
  };
  Moved last_;
};

}  // namespace tributary
