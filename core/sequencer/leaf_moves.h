// The sequencer's moves of leaves between workers: at any time, also while a step is open. No row
// of a full leaf changes, and the next round is planned with the new owner.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/placement/leaf_move.h"
#include "core/placement/pool_load.h"
#include "core/sequencer/order.h"
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

  // Page copies in the order page by page, of each all layers: copied <= taken <= ordered.
  std::int64_t ordered = 0;  // in an order
  std::int64_t taken = 0;    // in an order that is, or was, executed
  std::int64_t copied = 0;   // in an order that succeeded on every rank
};

/// begin() -> order_copies() -> order_taken() -> order_ended() -> ... -> completed, or cancelled.
/// Moves proceed in the order in which they began; a sequence has one at most.
class LeafMoves {
 public:
  /// `layers` of a page. The others outlive it. Throws kInvalidArgument for fewer than one layer.
  LeafMoves(int layers, PoolLedger& ledger, SequenceBlocks& blocks, Order& order);

  /// Takes pages at the target for a move; its rows are copied by order_copies(). Throws, with
  /// nothing changed, kNotFound, kAlreadyExists for a sequence with a move under way,
  /// kInvalidArgument for leaves that do not exist, are not full or not all on one other worker,
  /// kFailedPrecondition while the prompt is arriving and for a worker that is being emptied,
  /// kPoolFull.
  void begin(const LeafMove& move);
  /// Adds up to `most` page copies of the moves under way to the order, and returns how many.
  std::int64_t order_copies(std::int64_t most);
  /// The order is about to be executed.
  void order_taken();
  /// The order taken last has ended on all ranks, and succeeded or not. Moves whose rows are all
  /// copied change the owner with the next order; if not `ok`, those with copies in that order are
  /// cancelled.
  void order_ended(bool ok);
  /// Nothing happens if no leaf of the sequence is moving. Truncation and the end of a sequence
  /// cancel its move.
  void cancel(SequenceId id);
  [[nodiscard]] std::span<const RunningMove> running() const noexcept { return moves_; }
  /// Returns the sequences with a full leaf that may be moved without going against their clients'
  /// wishes: those of spread `auto` that are not moving and whose prompts are here; by id.
  /// `of_any_policy` returns those of other policies too, for a purpose that matters more: a drain.
  [[nodiscard]] std::vector<const Sequence*> movable(bool of_any_policy = false) const;
  /// Returns the loads as they will be once the moves under way are completed. Pages are as they
  /// are: both ends hold them.
  [[nodiscard]] PoolLoad load_afterwards() const;
  /// A worker that is to be emptied gets no new leaf and no move; moves to it are cancelled. The
  /// schedule of moves empties it (plan_drain). The newest leaf of a sequence stays until it is
  /// full and another one opens, elsewhere; homes stay until their sequences end. Throws
  /// kInvalidArgument for a worker that does not exist.
  void drain_worker(std::int32_t worker, bool drain);
  struct Totals {
    std::uint64_t completed = 0;
    std::uint64_t cancelled = 0;
    std::uint64_t page_copies = 0;  // that succeeded, each of one layer
  };
  [[nodiscard]] const Totals& totals() const noexcept { return totals_; }

 private:
  [[nodiscard]] bool moving(SequenceId id) const;
  [[nodiscard]] std::int64_t page_copies(const RunningMove& move) const;
  void complete(const RunningMove& move);
  void cancelled(const RunningMove& move);

  PoolLedger& ledger_;
  SequenceBlocks& blocks_;
  Order& order_;
  int layers_;
  std::vector<RunningMove> moves_;
  Totals totals_;
};

}  // namespace tributary
