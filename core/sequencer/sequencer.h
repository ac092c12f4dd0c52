// The pool's one decision maker (rank 0): admits sequences, allocates pages, places leaves, numbers
// rounds. It computes nothing and talks to nobody; what it decided is collected in an Order.
#pragma once

#include <cstdint>
#include <functional>

#include "core/placement/placement.h"
#include "core/sequencer/drain.h"
#include "core/sequencer/leaf_moves.h"
#include "core/sequencer/losses.h"
#include "core/sequencer/open_steps.h"
#include "core/sequencer/order.h"
#include "core/sequencer/pending_copies.h"
#include "core/sequencer/pool_ledger.h"
#include "core/sequencer/sequence_blocks.h"
#include "core/sequencer/sequencer_options.h"
#include "core/sequencer/sequences.h"

namespace tributary {

struct SequencerConfig {
  PlacementConfig placement;          // workers, leaf_tokens, constants of the machine
  std::int32_t pages_per_worker = 0;  // >= 1
  std::uint32_t incarnation = 1;      // upper half of sequence ids
  SequencerOptions options = {};
};

/// Its parts decide; all of them write into one order.
class Sequencer {
 public:
  /// Throws kInvalidArgument.
  explicit Sequencer(const SequencerConfig& config);
  Sequencer(const Sequencer&) = delete;  // its parts know each other
  Sequencer& operator=(const Sequencer&) = delete;

  [[nodiscard]] Sequences& sequences() noexcept { return sequences_; }
  [[nodiscard]] const Sequences& sequences() const noexcept { return sequences_; }
  [[nodiscard]] OpenSteps& steps() noexcept { return steps_; }
  [[nodiscard]] const OpenSteps& steps() const noexcept { return steps_; }
  [[nodiscard]] LeafMoves& moves() noexcept { return moves_; }
  [[nodiscard]] const LeafMoves& moves() const noexcept { return moves_; }
  /// Pages whose rows wait for the next order.
  [[nodiscard]] const PendingCopies& copies() const noexcept { return copies_; }
  [[nodiscard]] Losses& losses() noexcept { return losses_; }
  /// Decides what leaves workers that are being emptied without a copy, see Drain.
  [[nodiscard]] bool give_away(const std::function<bool(SequenceId)>& is_busy) {
    return drain_.give_away(is_busy);
  }
  /// The outcome of all decisions.
  [[nodiscard]] const PoolLedger& ledger() const noexcept { return ledger_; }

  /// All that was decided since the last call, numbered.
  [[nodiscard]] Order take_order();
  /// The order taken last has ended on all ranks, and succeeded or not.
  void order_ended(bool ok);

 private:
  Order order_;  // its number is that of the next one to be taken
  PoolLedger ledger_;
  SequenceBlocks blocks_;
  PendingCopies copies_;
  OpenSteps steps_;
  LeafMoves moves_;
  Sequences sequences_;
  Drain drain_;
  Losses losses_;
};

}  // namespace tributary
