// Which of the running sequences are the first half of a round, and whether rounds run in halves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/cache/sequence_table.h"
#include "core/cost/halves.h"
#include "core/cost/pool_load.h"
#include "core/cost/round_work.h"
#include "core/sequencer/overlap.h"

namespace tributary {

/// Keeps two ways to cut the running sequences in halves: every second one, of those that are
/// exchanged and of the others; and the exchanged ones from the others. improve() makes both
/// better, a few sequences at a time, so that no round waits for it.
class RoundHalves {
 public:
  /// Rounds in halves go on until a step gains less than this by them.
  static constexpr double kPaysNoMore = 0.01;
  /// Sequences that improve() looks at, and after a change before it comes to rest.
  static constexpr std::size_t kLooks = 4;
  static constexpr std::size_t kLooksAfterAChange = 32;
  /// Calls of improve() from one rest to the next look at all: sequences grow.
  static constexpr int kRests = 256;

  RoundHalves(Overlap overlap, const PoolLoad& empty)
      : overlap_(overlap),
        splits_{Halves(empty), Halves(empty)},
        on_(overlap == Overlap::kAlways) {}

  /// A sequence comes; one that was removed just before comes again as what it has become.
  void add(SequenceId id, std::span<const LeafRun> runs, std::int32_t home, std::int64_t tokens);
  void remove(SequenceId id);
  void grow(SequenceId id, std::int32_t worker, std::int64_t tokens);

  /// Steps of so many sequences begin: improves once a step of all, however they come. `whole`: of
  /// the same sequences.
  void begun(std::size_t steps, const PoolLoad& whole, const RoundPrices& prices);
  /// Looks at a few sequences, and whether rounds run in halves.
  void improve(const PoolLoad& whole, const RoundPrices& prices);
  /// Whether rounds run in halves.
  [[nodiscard]] bool on() const noexcept { return on_; }
  /// What a step of all gains by it, as a share, by the last look; 0 while rounds are whole, below
  /// 0 where they are halved always.
  [[nodiscard]] double gain() const noexcept { return on_ ? gain_ : 0; }
  [[nodiscard]] int half_of(SequenceId id) const { return splits_[chosen_].half_of(id); }

 private:
  void look_again();
  void choose(const PoolLoad& whole, const RoundPrices& prices);

  Overlap overlap_;
  std::array<Halves, 2> splits_;
  std::size_t chosen_ = 0;
  bool on_;
  double gain_ = 0;
  std::array<std::int64_t, 2> seen_{};  // that are whole, that are exchanged
  struct Removed {
    SequenceId id = 0;
    std::array<int, 2> halves{};
  };
  std::optional<Removed> removed_;  // the last one, as it was
  std::size_t begun_ = 0;           // steps of sequences, since the last look
  std::size_t looks_left_ = 0;      // before it rests
  int rested_ = 0;
};

}  // namespace tributary
