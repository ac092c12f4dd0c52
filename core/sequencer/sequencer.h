// The pool's one decision maker (rank 0): admits sequences, allocates pages, places leaves, numbers
// rounds. It computes nothing and talks to nobody; what it decided is collected in an Order.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/cache/page_pool.h"
#include "core/cache/sequence_table.h"
#include "core/moves/move_book.h"
#include "core/placement/placement.h"
#include "core/plan/plan.h"
#include "core/sequencer/admit_request.h"
#include "core/sequencer/order.h"
#include "core/sequencer/page_waits.h"

namespace tributary {

struct SequencerConfig {
  PlacementConfig placement;          // workers, leaf_tokens, constants of the machine
  std::int32_t pages_per_worker = 0;  // >= 1
  std::uint32_t incarnation = 1;      // upper half of sequence ids
  int layers = 1;                     // of a page, for moves
};

/// As whom a sequence is admitted.
struct AdmitAs {
  std::int64_t tag = 0;  // the caller's own name for it
  /// 0: the sequencer's own incarnation and counter. Else the id, chosen outside, never used
  /// before.
  SequenceId id = 0;
};

class Sequencer {
 public:
  /// Throws kInvalidArgument.
  explicit Sequencer(const SequencerConfig& config);

  /// Reserves the pages for the whole request and places it; its prompt's rows come from outside
  /// (IngestTable). Moves that hold pages it needs are cancelled. No value: no room now, try again
  /// when something was freed; `auto` may wait for a worker with all its pages, see PageWaits for
  /// how long. Throws kTooLarge for a request that an empty pool could not hold, kInvalidArgument
  /// for bad lengths, kAlreadyExists for a given id that is in the pool, kFailedPrecondition when
  /// all ids of the incarnation were given; nothing is changed then.
  [[nodiscard]] std::optional<SequenceId> admit(const AdmitRequest& request,
                                                const AdmitAs& as = {});
  /// Throws what admit() would throw: tells before a run whether all its requests can ever be held.
  void check(const AdmitRequest& request, std::int64_t tag = 0) const;

  // Steps. A sequence is in one open step at most; any number of sequences may be.

  struct StepRequest {
    SequenceId id = 0;
    std::int32_t tokens = 1;
  };
  /// Opens a step of each of `requests` (each sequence once) and orders the pages that it needs,
  /// out of the reservations. Throws, with nothing changed, kNotFound, kInvalidArgument, and
  /// kFailedPrecondition for a sequence that is in an open step.
  void open_step(std::span<const StepRequest> requests);
  struct RoundRequest {
    SequenceId id = 0;
    std::int32_t layer = 0;
  };
  /// Orders one round: sequences of open steps, each once, each at its layer. Throws, with nothing
  /// changed, kFailedPrecondition for a sequence without an open step, or when a round was ordered
  /// since take_order(); kInvalidArgument for no sequence, one twice, a negative layer, or a canary
  /// of an item that is not there.
  void order_round(std::span<const RoundRequest> items, CanaryOrder canary = {});
  /// Ends an open step: the sequence grows by `accepted` of its tokens (0 .. tokens); pages that it
  /// got for the others stay with it. A round of it that was ordered and not taken goes on without
  /// it. Throws, and the step stays open, kInvalidArgument for a number that does not fit,
  /// kFailedPrecondition without an open step, or with accepted > 0 before a round of it was taken:
  /// no worker has its rows then.
  void commit(SequenceId id, std::int32_t accepted);
  /// The open step of a sequence: its tokens, or 0.
  [[nodiscard]] std::int32_t open_tokens(SequenceId id) const;

  /// Drops the rows from `length` on and gives their pages back to the reservation; a new epoch.
  /// Throws kNotFound, kInvalidArgument, kFailedPrecondition while the sequence is in an open step.
  void truncate(SequenceId id, std::int64_t length);
  /// Throws kNotFound, kFailedPrecondition while the sequence is in an open step.
  void free(SequenceId id);
  /// As free(), but the pages stay out of use until release_closed(): transfers into them may be
  /// under way.
  void close(SequenceId id);
  /// Pages of sequences that were closed in orders up to `drained_round` (RoundReport) are free.
  void release_closed(std::uint64_t drained_round);
  /// Sequences that were closed and not released.
  [[nodiscard]] std::size_t closing() const noexcept { return closed_.size(); }

  // Moves of leaves between workers, at any time, also while a step is open: no row of a full leaf
  // changes, and the next round is planned with the new owner. Truncation and the end of a sequence
  // cancel its move.

  /// All rows of the sequence's prompt have arrived. Repeated calls and unknown sequences do
  /// nothing.
  void prompt_arrived(SequenceId id) { turnover_ += filling_.erase(id); }
  /// Takes pages at the target for a move; its rows are copied by order_copies(). Throws, with
  /// nothing changed, kNotFound, kAlreadyExists for a sequence with a move under way,
  /// kInvalidArgument for leaves that do not exist, are not full or not all on one other worker,
  /// kFailedPrecondition while the prompt is arriving and for a worker that is being emptied,
  /// kPoolFull.
  void begin_move(const LeafMove& move);
  /// Adds up to `most` page copies of the moves under way to the order, and returns how many.
  std::int64_t order_copies(std::int64_t most) { return moves_.next_copies(most, order_.copies); }
  /// The order taken last has ended on all ranks, and succeeded or not. Moves whose rows are all
  /// copied change the owner with the next order; if not `ok`, those with copies in that order are
  /// cancelled.
  void order_ended(bool ok);
  /// Nothing happens if no leaf of the sequence is moving.
  void cancel_move(SequenceId id);
  [[nodiscard]] std::span<const RunningMove> moves() const noexcept { return moves_.moves(); }
  /// What may be moved without going against what its client asked for: sequences of spread `auto`
  /// that are not moving and whose prompts are here; by id. `of_any_policy`: for what matters more,
  /// as a drain does.
  [[nodiscard]] std::vector<const Sequence*> movable(bool of_any_policy = false) const;
  /// A worker that is to be emptied gets no new leaf and no move; moves to it are cancelled. What
  /// it holds is moved off by others (plan_drain). The newest leaf of a sequence stays until it is
  /// full and another one opens, elsewhere; homes stay until their sequences end. Throws
  /// kInvalidArgument for a worker that does not exist.
  void drain_worker(std::int32_t worker, bool drain);
  [[nodiscard]] bool draining(std::int32_t worker) const {
    return draining_[static_cast<std::size_t>(worker)];
  }
  struct MoveTotals {
    std::uint64_t completed = 0;
    std::uint64_t cancelled = 0;
    std::uint64_t page_copies = 0;  // that succeeded, each of one layer
  };
  [[nodiscard]] const MoveTotals& move_totals() const noexcept { return move_totals_; }

  /// All that was decided since the last call, numbered.
  [[nodiscard]] Order take_order();

  [[nodiscard]] const SequenceTable& table() const noexcept { return table_; }
  [[nodiscard]] std::span<const PagePool> pools() const noexcept { return pools_; }
  [[nodiscard]] std::span<const WorkerLoad> loads() const noexcept { return load_.workers(); }
  /// What all running sequences are to the workers.
  [[nodiscard]] const PoolLoad& load() const noexcept { return load_; }
  /// Predicted time of a step of all running sequences, one new token each.
  [[nodiscard]] double predicted_step_us() const { return load_.step_us(placement_.prices()); }
  [[nodiscard]] const RoundPrices& prices() const noexcept { return placement_.prices(); }
  /// Owners chosen so far: one per extent at admission, one per leaf opened later.
  [[nodiscard]] std::uint64_t placements() const noexcept { return placements_; }
  /// Sequences that began, arrived or ended so far.
  [[nodiscard]] std::uint64_t turnover() const noexcept { return turnover_; }

 private:
  void decide(TableOp op);
  [[nodiscard]] std::int64_t leaf_rows(const Sequence& s, std::size_t leaf,
                                       std::int64_t length) const;
  [[nodiscard]] std::int32_t take_page(std::int32_t worker);
  void sync_available(std::int32_t worker);
  void check_not_in_step(SequenceId id) const;
  void check_commit(SequenceId id, std::int32_t accepted) const;
  void withdraw(SequenceId id);
  void release_pages(const Sequence& s);
  void end(SequenceId id);
  void grow(const Sequence& s, std::int64_t length);
  void account(const Sequence& s, int sign);
  [[nodiscard]] std::optional<Assignment> place(const AdmitRequest& request);
  [[nodiscard]] PoolLoad load_after_moves() const;
  [[nodiscard]] std::int32_t beside_drained(std::int32_t reserved, std::int32_t home,
                                            std::int64_t pages) const;
  void give_back(std::int32_t worker, std::span<const std::int32_t> pages);
  void complete(const RunningMove& move);
  void cancelled(const RunningMove& move);

  SequencerConfig config_;
  Placement placement_;
  SequenceTable table_;
  std::vector<PagePool> pools_;
  std::vector<bool> draining_;  // by worker
  PoolLoad load_;
  PageWaits page_waits_;
  std::vector<LeafRun> runs_;  // of the sequence that is accounted
  std::unordered_map<SequenceId, SpreadPolicy> policies_;
  struct OpenStep {
    std::int32_t tokens = 0;
    bool taken = false;  // an order with a round of it was taken
  };
  std::unordered_map<SequenceId, OpenStep> open_;
  struct Closed {
    std::uint64_t round = 0;  // of the order that ended it
    Sequence sequence;
  };
  std::deque<Closed> closed_;  // not released, by round
  MoveBook moves_;
  MoveTotals move_totals_;
  std::unordered_set<SequenceId> filling_;  // their prompts' rows have not all arrived
  Order order_;
  std::uint32_t counter_ = 0;
  std::uint64_t round_ = 0;
  std::uint64_t placements_ = 0;
  std::uint64_t turnover_ = 0;
};

}  // namespace tributary
