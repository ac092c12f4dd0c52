// The sequencer's running sequences: how they are admitted, placed, cut short and ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/placement/placement.h"
#include "core/sequencer/admit_request.h"
#include "core/sequencer/leaf_moves.h"
#include "core/sequencer/open_steps.h"
#include "core/sequencer/order.h"
#include "core/sequencer/page_waits.h"
#include "core/sequencer/pending_copies.h"
#include "core/sequencer/pool_ledger.h"
#include "core/sequencer/sequence_blocks.h"

namespace tributary {

/// The name under which a sequence is admitted.
struct AdmitAs {
  std::int64_t tag = 0;  // the caller's own name for it
  /// 0: the sequencer's own incarnation and counter. Else the id, chosen outside, never used
  /// before.
  SequenceId id = 0;
};

class Sequences {
 public:
  /// `incarnation`: upper half of sequence ids. All others outlive it.
  Sequences(std::uint32_t incarnation, PoolLedger& ledger, SequenceBlocks& blocks,
            const OpenSteps& steps, LeafMoves& moves, PendingCopies& copies, const Order& order);

  /// Reserves the pages for the whole request and places it; its prompt's rows come from outside
  /// (IngestTable). Moves that hold pages it needs are cancelled. No value: no room now, or others
  /// wait for room since a worker was lost; try again when something was freed; `auto` may wait for
  /// a worker with all its pages, see PageWaits for how long. Of a prefix's blocks the sequence
  /// shares the first ones that lie where it goes, see place_with_blocks(). A fork lies where its
  /// parent does; it shares whole pages and copies the last one. Throws kTooLarge for a request
  /// that an empty pool could not hold, kInvalidArgument for bad lengths or a bad prefix,
  /// kAlreadyExists for a given id that is in the pool, kFailedPrecondition when all ids of the
  /// incarnation were given or the parent's prompt is arriving, kNotFound and kStaleEpoch for the
  /// parent, kUnavailable while its last page is copied; nothing is changed then.
  [[nodiscard]] std::optional<SequenceId> admit(const AdmitRequest& request,
                                                const AdmitAs& as = {});
  /// Throws what admit() would throw: tells before a run whether all its requests can ever be held.
  void check(const AdmitRequest& request, std::int64_t tag = 0) const;
  /// All rows of the sequence's prompt, and those that were lost, have arrived: its blocks get
  /// their names. Nothing happens while it waits for room. Repeated calls and unknown sequences do
  /// nothing.
  void prompt_arrived(SequenceId id);

  /// Names blocks of committed rows, from block `first` on; those that have a name keep it. Throws
  /// kNotFound, kFailedPrecondition while rows of the prompt are missing, kInvalidArgument for a
  /// bad prefix, another size of blocks than at admission, and blocks beyond the sequence's length.
  void name_blocks(SequenceId id, const Prefix& names, std::int64_t first);

  /// Reserves pages up to `limit_tokens`, prompt included, on the owner of the newest leaf and then
  /// for whole leaves where there is room. Returns false, with nothing changed, where there is
  /// none. A limit that is not above the sequence's own changes nothing. Throws kNotFound,
  /// kTooLarge, kInvalidArgument.
  [[nodiscard]] bool raise_limit(SequenceId id, std::int64_t limit_tokens);
  /// Drops the rows from `length` on and gives their pages back to the reservation; a new epoch. A
  /// page that others use, and that is to be written to, is copied. Throws kNotFound,
  /// kInvalidArgument, kFailedPrecondition while the sequence is in an open step or lacks rows that
  /// were lost, kPoolFull where there is no room to promise it as many pages again as it leaves to
  /// others, kUnavailable where its last page is another's too and waits for its rows.
  void truncate(SequenceId id, std::int64_t length);
  /// Throws kNotFound, kFailedPrecondition while the sequence is in an open step.
  void free(SequenceId id);
  /// As free(), but the pages stay out of use until release_closed(): transfers into them may be
  /// under way.
  void close(SequenceId id);
  /// Pages of sequences that were closed in orders up to `drained_round` (RoundReport) are free.
  void release_closed(std::uint64_t drained_round);
  struct LostRows {
    bool new_epoch = false;    // also where none of the leaves has committed rows
    bool keep_blocks = false;  // their rows are here until others need the room
  };
  /// The rows of these leaves are lost, or given up: the leaves wait for room on other workers, see
  /// Losses, and rows that they had come again from outside. The epoch is a new one where they had
  /// some. Its move is cancelled. Pages on workers that are not lost stay out of use until
  /// release_closed(). Throws kNotFound.
  void lose(SequenceId id, std::vector<std::int32_t> leaves, LostRows how);
  /// A worker is lost: closed sequences have no pages there any more.
  void lose_closed(std::int32_t worker);
  /// Sequences that were closed, and leaves that were given up, and not released.
  [[nodiscard]] std::size_t closing() const noexcept { return closed_.size(); }

 private:
  /// A new sequence with the pages that it shares; to their owners the rest is added.
  struct Beginning {
    Sequence sequence = {};
    SpreadPolicy spread = SpreadPolicy::kAuto;
    std::vector<NamedBlock*> blocks = {};  // that it shares, or:
    std::int32_t copied_page = -1;         // whose rows its first own page begins with
  };
  [[nodiscard]] std::optional<Beginning> begin_by_names(const AdmitRequest& request,
                                                        const std::vector<std::string>& names);
  [[nodiscard]] std::optional<Beginning> begin_as_fork(const AdmitRequest& request) const;
  void check_parent(const AdmitRequest& request, std::int64_t tag) const;
  [[nodiscard]] std::optional<Assignment> place(const AdmitRequest& request);
  [[nodiscard]] std::optional<std::vector<std::int32_t>> owners_of_more(const Sequence& s,
                                                                        std::int64_t limit_tokens,
                                                                        std::int64_t last) const;
  void release_pages(const Sequence& s);
  void release_leaf(const Sequence& s, std::size_t i);
  void end(SequenceId id);

  std::uint32_t incarnation_;
  PoolLedger& ledger_;
  SequenceBlocks& blocks_;
  const OpenSteps& steps_;
  LeafMoves& moves_;
  PendingCopies& copies_;
  const Order& order_;
  PageWaits page_waits_;
  struct Closed {
    std::uint64_t round = 0;  // of the order that ended it
    Sequence sequence;
    bool ends = true;  // all of it; else leaves that were given up
  };
  std::deque<Closed> closed_;  // not released, by round
  std::uint32_t counter_ = 0;
};

}  // namespace tributary
