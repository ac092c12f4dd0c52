// What becomes of a pool's sequences when a worker is lost: those that had rows, reservations or
// their home there lose these alone, and get room on the workers that are left.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/sequencer/leaf_moves.h"
#include "core/sequencer/open_steps.h"
#include "core/sequencer/pending_copies.h"
#include "core/sequencer/pool_ledger.h"
#include "core/sequencer/sequences.h"

namespace tributary {

/// What a worker took along; each list ascending.
struct Loss {
  /// That have another epoch, and lack rows now (PoolLedger::Running::lost) or an open step.
  std::vector<SequenceId> epochs;
  std::vector<SequenceId>
      steps;  // whose open step was aborted: rows of it, or its home, were there
  std::vector<SequenceId> homes;  // that have another home
};

/// A sequence with a leaf that has no owner waits. Room is given to all leaves of one, or to none
/// of them, the oldest first; meanwhile nobody else is admitted. Where all running sequences wait,
/// so that none will end and make room, the youngest give up what they have, one after the other,
/// until the oldest has room: of a full pool that loses half its workers each sequence may have
/// kept a half.
class Losses {
 public:
  /// All outlive it.
  Losses(PoolLedger& ledger, OpenSteps& steps, LeafMoves& moves, PendingCopies& copies,
         Sequences& sequences)
      : ledger_(ledger), steps_(steps), moves_(moves), copies_(copies), sequences_(sequences) {}

  /// The worker and all that it held are gone: it gets nothing more, its moves are cancelled, and
  /// the next order carries what changes. Where all others are being emptied, they no longer are.
  /// Between two orders. Throws kInvalidArgument for a worker
  /// that does not exist, kFailedPrecondition for one that is lost already and for the last one.
  [[nodiscard]] Loss lose_worker(std::int32_t worker);
  /// Another worker has taken the place of one that was lost: it is empty, and not being emptied,
  /// whatever the lost one was. Throws kInvalidArgument for a worker that does not exist,
  /// kFailedPrecondition for one that is not lost.
  void take_worker(std::int32_t worker);
  /// Gives room to sequences that wait for it. Returns those that got some, or gave theirs up (rows
  /// are lost, and the epoch is another one). Between two orders, again and again: pages that are
  /// given up stay out of use as those of a closed sequence do.
  [[nodiscard]] std::vector<SequenceId> give_room();

 private:
  using Places = std::vector<std::pair<std::int32_t, std::int32_t>>;  // leaf, worker

  void check_worker(std::int32_t worker) const;
  [[nodiscard]] std::vector<std::int32_t> lost_leaves(const Sequence& s, std::int32_t worker,
                                                      const Places& in_vain) const;
  [[nodiscard]] bool step_is_lost(const Sequence& s, const std::vector<std::int32_t>& leaves) const;
  [[nodiscard]] std::optional<Places> room_for(const Sequence& s) const;
  void resume_if_all_drain();
  [[nodiscard]] std::vector<SequenceId> place_waiting();
  [[nodiscard]] std::optional<SequenceId> youngest_gives_up();

  PoolLedger& ledger_;
  OpenSteps& steps_;
  LeafMoves& moves_;
  PendingCopies& copies_;
  Sequences& sequences_;
};

}  // namespace tributary
