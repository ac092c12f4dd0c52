// The sequencer's moves of leaves between workers: at any time, also while a step is open. No row
// of a full page changes, and the next round is planned with the new owner. The last pages of a
// leaf that grows are copied in the order that changes its owner, before that order's round.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/placement/leaf_move.h"
#include "core/placement/pool_load.h"
#include "core/sequencer/order.h"
#include "core/sequencer/pending_copies.h"
#include "core/sequencer/pool_ledger.h"
#include "core/sequencer/sequence_blocks.h"

namespace tributary {

/// A move that is under way: the rows are still read at `from`. It has pages at both ends until it
/// is completed, which frees those of `from`, or cancelled, which frees those of `to`.
struct RunningMove {
  LeafMove move;
  std::int32_t from = 0;
  std::vector<std::int32_t> from_pages;  // of all its leaves, in order
  std::vector<std::int32_t> to_pages;    // as many
  bool newest = false;                   // the leaf goes on to grow while it moves
  std::int64_t promised = 0;             // pages at `to` that it will take until its limit

  // Copies of full pages in the order page by page, of each all layers: copied <= taken <= ordered.
  std::int64_t ordered = 0;  // in an order
  std::int64_t taken = 0;    // in an order that is, or was, executed
  std::int64_t copied = 0;   // in an order that succeeded on every rank
};

/// begin() -> order_copies() -> order_taken() -> order_ended() -> ... -> completed, or cancelled.
/// Moves proceed in the order in which they began; a sequence has one at most.
class LeafMoves {
 public:
  /// `layers` of a page. The others outlive it. Throws kInvalidArgument for fewer than one layer.
  LeafMoves(int layers, PoolLedger& ledger, SequenceBlocks& blocks, PendingCopies& copies,
            Order& order);

  /// Takes pages at the target for a move of full leaves, or of the newest one alone with what is
  /// reserved for it; the rows are copied by order_copies(). Throws, with nothing changed,
  /// kNotFound, kAlreadyExists for a sequence with a move under way, kInvalidArgument for leaves
  /// that do not exist, have no pages or are not all on one other worker, kFailedPrecondition while
  /// the prompt is arriving and for a worker that is being emptied, kPoolFull.
  void begin(const LeafMove& move);
  /// Adds up to `most` page copies of the moves under way to the order, or a few more for the last
  /// pages of a newest leaf, which moves with this order. Returns how many.
  std::int64_t order_copies(std::int64_t most);
  /// The order is about to be executed.
  void order_taken();
  /// The order taken last has ended on all ranks, and succeeded or not. Moves of full leaves whose
  /// rows are all copied change the owner with the next order; if not `ok`, those with copies in
  /// that order are cancelled.
  void order_ended(bool ok);
  /// Nothing happens if no leaf of the sequence is moving. Truncation and the end of a sequence
  /// cancel its move.
  void cancel(SequenceId id);
  /// The same, if it is the newest leaf that moves.
  void cancel_newest(SequenceId id);
  /// All moves from and to a worker.
  void cancel_all_of(std::int32_t worker);
  [[nodiscard]] std::span<const RunningMove> running() const noexcept { return moves_; }
  /// Returns the sequences with a full leaf that may be moved without going against their clients'
  /// wishes: those of spread `auto` that are not moving and whose prompts are here; by id.
  [[nodiscard]] std::vector<const Sequence*> movable() const;
  /// Returns the sequences of any policy, which matters less than a drain, that have rows on a
  /// worker, are not moving and whose prompts are here; by id.
  [[nodiscard]] std::vector<const Sequence*> movable_from(std::int32_t worker) const;
  /// Returns the loads as they will be once the moves under way are completed. Pages are as they
  /// are: both ends hold them.
  [[nodiscard]] PoolLoad load_afterwards() const;
  /// A worker that is to be emptied gets no new leaf and no move; moves to it are cancelled. The
  /// schedule of moves takes its rows away (plan_drain), Drain the rest. Throws kInvalidArgument
  /// for a worker that does not exist, kFailedPrecondition for one that is lost.
  void drain_worker(std::int32_t worker, bool drain);
  struct Totals {
    std::uint64_t completed = 0;
    std::uint64_t cancelled = 0;
    std::uint64_t page_copies = 0;  // that succeeded, each of one layer
  };
  [[nodiscard]] const Totals& totals() const noexcept { return totals_; }

 private:
  [[nodiscard]] bool moving(SequenceId id) const;
  [[nodiscard]] std::int64_t full_pages(const RunningMove& move) const;
  [[nodiscard]] std::int64_t page_copies(const RunningMove& move) const;
  void take_new_pages(RunningMove& move);
  [[nodiscard]] bool has_arrived(const RunningMove& move) const;
  [[nodiscard]] std::int64_t copy_last_pages(const RunningMove& move);
  void complete(const RunningMove& move);
  void cancel_where(const std::function<bool(const RunningMove&)>& chosen);
  void cancelled(const RunningMove& move);

  PoolLedger& ledger_;
  SequenceBlocks& blocks_;
  PendingCopies& copies_;
  Order& order_;
  int layers_;
  std::vector<RunningMove> moves_;
  Totals totals_;
};

}  // namespace tributary
