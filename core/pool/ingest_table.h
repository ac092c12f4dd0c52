// Which rows of a sequence have arrived on this worker, of its prompt and of leaves that were lost,
// which are on their way, and which pages must not be used again before a transfer into them has
// ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/pool/page_runs.h"

namespace tributary {

/// Shared by the worker's thread (open, close, drained_round) and the one that receives rows. Its
/// memory is bounded by the sequences that are open, their transfers that have arrived (each some
/// 50 bytes, less than a tenth of its rows) and those that are under way.
class IngestTable {
 public:
  /// Throws kInvalidArgument for arguments out of range.
  IngestTable(int rank, int layers, int leaf_tokens);

  /// A sequence whose prompt comes from outside was admitted: this rank expects its share of the
  /// rows of every layer. Throws kAlreadyExists.
  void open(const Sequence& sequence);
  /// The sequence has ended by the order of `round`; nothing of it is accepted any more. Unknown
  /// ones are ignored.
  void close(SequenceId id, std::uint64_t round);
  /// The order of `round` names the leaves whose rows are lost, perhaps none: what this rank had of
  /// them is gone, and rows are accepted for the new epoch alone. Unknown sequences are ignored.
  void lose(const LoseOp& op, std::uint64_t round);
  /// This rank owns a leaf now whose rows were lost: it expects all of them again, of every layer.
  /// Throws kNotFound.
  void expect(const Sequence& sequence, std::int64_t leaf);
  /// The largest round number such that no transfer is under way into a sequence that was closed in
  /// it or before; 2^64 - 1 where none is at all. Also the border across which rows written by the
  /// other thread become visible to this one.
  [[nodiscard]] std::uint64_t drained_round() const;

  /// The tickets of the transfers into sequences that were closed.
  [[nodiscard]] std::vector<std::uint64_t> closed_transfers() const;

  /// Another rank is the sequence's home. Unknown sequences are ignored.
  void set_home(SequenceId id, int home);
  /// The home of a sequence that is open; no value for any other.
  [[nodiscard]] std::optional<int> home(SequenceId id) const;

  struct Transfer {
    std::uint64_t ticket = 0;   // 0: the same transfer has arrived before, and nothing is written
    std::vector<PageRun> runs;  // in the order of the rows
  };
  /// Rows begin .. begin + count - 1 of a layer are about to be written; `crc32c` is the checksum
  /// that comes with them. The same rows with the same checksum are a repetition: a client that has
  /// not heard the answer sends them again. (Their pages are not compared: by then leaves may have
  /// moved, and a page have another user.) Throws, with nothing changed, kNotFound for a sequence
  /// that is not here, kStaleEpoch, kWorkerLost as check_epoch(), kInvalidArgument for rows that
  /// this rank does not expect, kUnavailable while the same transfer is under way, kAlreadyExists
  /// when one of the rows has arrived, is shared with another sequence, or is on its way in another
  /// transfer.
  [[nodiscard]] Transfer begin(SequenceId id, std::uint32_t epoch, int layer, std::int64_t begin,
                               std::int64_t count, std::optional<std::uint32_t> crc32c = {});

  struct Progress {
    bool counted = false;  // false: the sequence was closed meanwhile; the rest is 0 then
    std::uint32_t epoch = 0;
    std::int64_t rows_done = 0;  // of this rank, over all layers
    std::int64_t rows_total = 0;
    std::int32_t missing_layer = -1;  // the first that has not arrived; -1: all have
    std::int64_t missing_position = -1;
  };
  /// Ends a transfer. Not `arrived`: the rows may be sent again. Throws kNotFound for a ticket that
  /// is not under way.
  Progress end(std::uint64_t ticket, bool arrived);
  /// The first of the rows begin .. end - 1 of a layer that has not arrived here, of those that
  /// admission gave to this rank; no value where all have, or the sequence is not here.
  [[nodiscard]] std::optional<std::int64_t> first_missing(SequenceId id, int layer,
                                                          std::int64_t begin,
                                                          std::int64_t end) const;
  /// The same progress as from end(), without a transfer; throws kNotFound.
  [[nodiscard]] Progress progress(SequenceId id) const;

 private:
  /// Rows begin .. end - 1.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  struct Message {
    Range range;
    std::optional<std::uint32_t> crc32c;
  };
  struct Layer {
    std::vector<Range> arrived;  // ascending, not touching; empty again once all have
    std::unordered_map<std::int64_t, Message> messages;  // that arrived with a checksum, by begin
    std::vector<Message> under_way;
    std::int64_t rows = 0;  // arrived
  };
  struct Entry {
    std::uint32_t epoch = 0;
    std::uint32_t lost_since = 0;  // the epoch before the first loss; 0: none
    int home = 0;
    std::int64_t present_tokens = 0;  // these are not awaited, unless they were lost
    std::unordered_map<std::int64_t, std::vector<std::int32_t>>
        leaf_pages;            // of this rank's leaves
    std::vector<Range> share;  // the rows that this rank expects, ascending, not touching
    std::int64_t rows = 0;     // of the share
    std::vector<Layer> layers;
    std::size_t complete = 0;  // layers at the front that have arrived
    std::int64_t rows_done = 0;
  };
  struct Flight {
    SequenceId id = 0;
    std::size_t layer = 0;
    Message message;
    std::uint64_t closed_round = 0;  // 0: the sequence is open
  };

  [[nodiscard]] static bool same(const Message& a, const Message& b);
  static void recount(Entry& entry);
  void drop_leaf(SequenceId id, Entry& entry, std::int64_t leaf, std::uint64_t round);
  void check_share(SequenceId id, const Entry& entry, int layer, std::int64_t begin,
                   std::int64_t count) const;
  void check_new(SequenceId id, const Layer& rows, const Entry& entry, int layer,
                 const Message& message) const;
  [[nodiscard]] std::vector<PageRun> page_runs(const Entry& entry, Range range) const;
  [[nodiscard]] Progress progress_of(const Entry& entry) const;
  [[nodiscard]] static std::optional<std::int64_t> first_missing(const Entry& entry,
                                                                 const Layer& rows, Range range);

  int rank_;
  int layers_;
  std::int64_t leaf_tokens_;

  mutable std::mutex mutex_;  // guards all that follows
  std::unordered_map<SequenceId, Entry> entries_;
  std::unordered_map<std::uint64_t, Flight> flights_;  // by ticket
  std::map<std::uint64_t, std::int64_t> closed_;       // transfers under way, by round of the close
  std::uint64_t last_ticket_ = 0;
};

}  // namespace tributary
