// The sequences of a round in two halves, the exchange of one half beside the attention of the
// other.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/cost/pool_load.h"
#include "core/cost/round_work.h"

namespace tributary {

/// Predicted times of a round that is not cut.
struct WholeRound {
  double step_us = 0;   // with the exchange that makes it shorter
  double layer_us = 0;  // of one layer, what halves change: exchanges, attention, trees
};
[[nodiscard]] WholeRound predict_whole(const PoolLoad& load, const RoundPrices& prices);

/// Halves go: queries of the first; queries of the second under the first's attention; the first's
/// states and the end of its trees under the second's attention; states and trees of the second.
/// Each half has its own messages, calls, merge levels and readings of W_UK and W_UV, and waits for
/// its own slowest worker. The end of a tree is hidden under attention for nothing, though both
/// want the same device. Sequences come and go as with PoolLoad.
class Halves {
 public:
  explicit Halves(const PoolLoad& empty) : loads_{empty, empty} {}

  /// `half`: 0, the first, or 1.
  void add(SequenceId id, PlacedSequence sequence, int half);
  void remove(SequenceId id);
  void grow(SequenceId id, std::int32_t worker, std::int64_t tokens);
  [[nodiscard]] std::size_t size() const noexcept { return sequences_.size(); }
  [[nodiscard]] int half_of(SequenceId id) const { return sequences_[index_.at(id)].half; }

  /// Whether neither half is empty.
  [[nodiscard]] bool cut() const { return loads_[0].sequences() > 0 && loads_[1].sequences() > 0; }

  /// Of one layer, see WholeRound, each half with the exchange that suits it; infinite while a half
  /// is empty.
  [[nodiscard]] double layer_us(const RoundPrices& prices) const;
  /// Looks at the next `count` sequences, in turn, and moves each to the other half where that
  /// makes a layer shorter. Returns how many moved.
  std::size_t improve(const RoundPrices& prices, std::size_t count);

 private:
  struct Member {
    SequenceId id = 0;
    PlacedSequence sequence;
    int half = 0;
  };
  void swap(Member& member);

  std::array<PoolLoad, 2> loads_;
  std::vector<Member> sequences_;
  std::unordered_map<SequenceId, std::size_t> index_;  // in sequences_
  std::size_t next_ = 0;                               // to look at
};

}  // namespace tributary
