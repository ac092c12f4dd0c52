// The sequencer's account of a pool: the sequence table, each worker's pages, and the loads. They
// change together, and every change of the table goes into the order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/placement/placement.h"
#include "core/placement/spread_policy.h"
#include "core/sequencer/order.h"
#include "core/sequencer/pool_pages.h"

namespace tributary {

class PoolLedger {
 public:
  /// Adds to `order`, which outlives the ledger. `max_step_us` as of Placement. Throws
  /// kInvalidArgument.
  PoolLedger(const PlacementConfig& placement, double max_step_us, std::int32_t pages_per_worker,
             Order& order);

  [[nodiscard]] const SequenceTable& table() const noexcept { return table_; }
  [[nodiscard]] std::span<const PagePool> pools() const noexcept { return pages_.pools(); }
  [[nodiscard]] const Placement& placement() const noexcept { return placement_; }
  /// Returns the load of all running sequences on the workers. A worker that is being emptied has
  /// no available pages.
  [[nodiscard]] const PoolLoad& load() const noexcept { return load_; }
  /// Predicts the time of a step of all running sequences, one new token each.
  [[nodiscard]] double predicted_step_us() const { return load_.step_us(placement_.prices()); }
  /// The ledger knows this of a running sequence; the table, and so the workers, do not.
  struct Running {
    SpreadPolicy spread = SpreadPolicy::kAuto;
    bool arriving = false;  // its prompt's rows, or others that were lost, have not all arrived
    std::vector<std::int32_t> lost = {};  // leaves whose rows are to come again, ascending
  };
  [[nodiscard]] const std::unordered_map<SequenceId, Running>& running() const noexcept {
    return running_;
  }
  /// Running sequences with a full leaf, which alone moves to gain time: as many as the pool has
  /// leaves at most, however many sequences run.
  [[nodiscard]] const std::set<SequenceId>& with_full_leaves() const noexcept {
    return with_full_leaves_;
  }
  /// Sequences with a leaf that has no owner, the oldest first: they wait for room on the workers
  /// that are left.
  [[nodiscard]] const std::set<SequenceId>& waiting() const noexcept { return waiting_; }
  /// Whether a worker gets no more: it is being emptied, or lost.
  [[nodiscard]] bool draining(std::int32_t worker) const { return pages_.draining(worker); }
  /// Counts the owners chosen so far: one per extent at admission, one per leaf opened later.
  [[nodiscard]] std::uint64_t placements() const noexcept { return placements_; }
  /// Counts the sequences that began, arrived or ended so far, and the changes of drained workers.
  [[nodiscard]] std::uint64_t turnover() const noexcept { return turnover_; }

  /// How many pages leaf `leaf` needs while the sequence has `length` rows, or its limit if that is
  /// less.
  [[nodiscard]] std::int64_t leaf_pages(const Sequence& s, std::size_t leaf,
                                        std::int64_t length) const;
  /// Pages and named blocks; sequences hold reservations up to their limits.
  [[nodiscard]] PoolPages& pages() noexcept { return pages_; }
  [[nodiscard]] const PoolPages& pages() const noexcept { return pages_; }

  // Changes.

  /// Adds a sequence that has its pages.
  void begin(Sequence s, SpreadPolicy spread);
  /// All rows of the prompt, and those that were lost, are here. Nothing happens while they have no
  /// pages, for repeated calls and unknown sequences.
  void prompt_arrived(SequenceId id);
  /// Removes a sequence; its pages are left to the caller.
  void end(SequenceId id);
  /// Applies an operation to the table and the loads, and adds it to the order.
  void decide(TableOp op);
  void set_draining(std::int32_t worker, bool drain);
  void set_lost(std::int32_t worker, bool lost);

 private:
  void account(const Sequence& s, int sign);
  void count_placements(const TableOp& op);
  [[nodiscard]] bool has_full_leaf(SequenceId id) const;
  void note_loss(const LoseOp& op);
  void note_waiting(SequenceId id);

  Placement placement_;
  int topk_;  // see AttentionShape
  SequenceTable table_;
  PoolLoad load_;
  PoolPages pages_;
  std::unordered_map<SequenceId, Running> running_;
  std::set<SequenceId> with_full_leaves_;
  std::set<SequenceId> waiting_;
  Order& order_;
  std::vector<LeafRun> runs_;  // of the sequence that is accounted
  std::uint64_t placements_ = 0;
  std::uint64_t turnover_ = 0;
};

}  // namespace tributary
