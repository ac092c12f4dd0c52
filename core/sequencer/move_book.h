// Moves of leaves between workers: which are under way, and how far each has come. A state machine
// without I/O: the sequencer owns the pages and tells it what happened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/placement/leaf_move.h"
#include "core/sequencer/page_copy.h"

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

/// begin() -> next_copies() -> taken() -> ended() -> ... -> copied in full, or cancelled. Moves
/// proceed in the order in which they began; a sequence has one at most.
class MoveBook {
 public:
  /// `layers` of a page. Throws kInvalidArgument for fewer than one.
  explicit MoveBook(int layers);

  [[nodiscard]] bool empty() const noexcept { return moves_.empty(); }
  [[nodiscard]] std::span<const RunningMove> moves() const noexcept { return moves_; }
  [[nodiscard]] bool contains(SequenceId id) const;

  /// `move` has no copies yet. Throws kAlreadyExists for a sequence with a move under way,
  /// kInternal for other than equally many pages at both ends, at least one.
  void begin(RunningMove move);
  /// Appends up to `most` of the next page copies, and returns how many.
  std::int64_t next_copies(std::int64_t most, std::vector<PageCopy>& copies);
  /// All copies so far are in an order that is about to be executed.
  void taken();

  struct Ended {
    std::vector<RunningMove> completed;
    std::vector<RunningMove> failed;
  };
  /// The orders so far that were taken have ended. Takes the moves out that are copied in full or,
  /// if not `ok`, had copies in the last of these orders.
  [[nodiscard]] Ended ended(bool ok);
  /// Takes the move of a sequence out.
  [[nodiscard]] std::optional<RunningMove> remove(SequenceId id);

 private:
  [[nodiscard]] std::int64_t page_copies(const RunningMove& move) const;

  int layers_;
  std::vector<RunningMove> moves_;
};

}  // namespace tributary
