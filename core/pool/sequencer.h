// The pool's one decision maker (rank 0): admits sequences, allocates pages, places leaves, numbers
// rounds. It computes nothing and talks to nobody; what it decided is collected in an Order.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/cache/page_pool.h"
#include "core/cache/sequence_table.h"
#include "core/placement/placement.h"
#include "core/plan/plan.h"
#include "core/pool/order.h"

namespace tributary {

struct SequencerConfig {
  PlacementConfig placement;          // workers, leaf_tokens, costs
  std::int32_t pages_per_worker = 0;  // >= 1
  std::uint32_t incarnation = 1;      // upper half of sequence ids
};

struct AdmitRequest {
  std::int64_t tag = 0;
  std::int64_t prompt_tokens = 0;   // >= 0
  std::int64_t max_new_tokens = 0;  // >= 0; the sum is at least 1
  SpreadPolicy spread = SpreadPolicy::kAuto;
};

class Sequencer {
 public:
  /// Throws kInvalidArgument.
  explicit Sequencer(const SequencerConfig& config);

  /// Reserves the pages for the whole request, places it, and orders the fill of its prompt.
  /// No value: no room now, try again when something was freed. Throws kTooLarge for a request that
  /// an empty pool could not hold, kInvalidArgument for bad lengths, kFailedPrecondition when all
  /// ids of the incarnation were given; nothing is changed then.
  [[nodiscard]] std::optional<SequenceId> admit(const AdmitRequest& request);
  /// Throws what admit() would throw: tells before a run whether all its requests can ever be held.
  void check(const AdmitRequest& request) const;

  /// Orders one step of `requests` (epoch is filled in; each sequence once) and the pages that it
  /// needs, out of the reservations. Throws, with nothing ordered, kNotFound or kInvalidArgument,
  /// and kFailedPrecondition while another step is open.
  struct StepRequest {
    SequenceId id = 0;
    std::int32_t tokens = 1;
  };
  void begin_step(std::span<const StepRequest> requests);
  /// Ends the open step: every sequence of it grows by its accepted tokens (0 .. tokens), given in
  /// the order of begin_step. Throws, and the step stays open, kInvalidArgument for numbers that do
  /// not fit it, kFailedPrecondition before its order was taken: no worker has its rows then.
  void commit_step(std::span<const std::int32_t> accepted);
  /// Ends the open step, if any, with nothing accepted; its pages stay with their sequences.
  void abort_step();

  /// Drops the rows from `length` on and gives their pages back to the reservation; a new epoch.
  /// Throws kNotFound, kInvalidArgument, kFailedPrecondition while the sequence is in an open step.
  void truncate(SequenceId id, std::int64_t length);
  /// Throws kNotFound, kFailedPrecondition while the sequence is in an open step.
  void free(SequenceId id);

  /// All that was decided since the last call, numbered.
  [[nodiscard]] Order take_order();

  [[nodiscard]] const SequenceTable& table() const noexcept { return table_; }
  [[nodiscard]] std::span<const PagePool> pools() const noexcept { return pools_; }
  [[nodiscard]] std::span<const WorkerLoad> loads() const noexcept { return loads_; }
  /// Owners chosen so far: one per extent at admission, one per leaf opened later.
  [[nodiscard]] std::uint64_t placements() const noexcept { return placements_; }

 private:
  void decide(TableOp op);
  [[nodiscard]] std::int64_t leaf_rows(const Sequence& s, std::size_t leaf,
                                       std::int64_t length) const;
  [[nodiscard]] std::int32_t take_page(std::int32_t worker);
  void sync_available(std::int32_t worker);
  void check_not_in_step(SequenceId id) const;
  void grow(const Sequence& s, std::int64_t length);
  void account(const Sequence& s, int sign);

  SequencerConfig config_;
  Placement placement_;
  SequenceTable table_;
  std::vector<PagePool> pools_;
  std::vector<WorkerLoad> loads_;
  std::unordered_map<SequenceId, SpreadPolicy> policies_;
  std::vector<StepItem> open_step_;
  std::unordered_set<SequenceId> in_step_;
  Order order_;
  std::uint32_t counter_ = 0;
  std::uint64_t round_ = 0;
  std::uint64_t placements_ = 0;
};

}  // namespace tributary
