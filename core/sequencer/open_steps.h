// The sequencer's steps and rounds. A sequence is in one open step at most; any number of sequences
// may be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>

#include "core/cache/sequence_table.h"
#include "core/sequencer/order.h"
#include "core/sequencer/pool_ledger.h"

namespace tributary {

class OpenSteps {
 public:
  /// Both outlive it.
  OpenSteps(PoolLedger& ledger, Order& order) : ledger_(ledger), order_(order) {}

  /// Opens a step of `tokens` tokens for each item (each sequence once), and orders the pages that
  /// it needs, out of the reservations. Throws, with nothing changed, kNotFound, kInvalidArgument,
  /// kFailedPrecondition for a sequence that is in an open step, and kUnavailable for one that
  /// waits for room since a worker was lost.
  void open(std::span<const StepItem> items);
  /// Orders one round: sequences of open steps, each once, each at its layer; the other fields of
  /// the order's items are those of the step. Throws, with nothing changed, kFailedPrecondition for
  /// a sequence without an open step, or when a round was ordered since the last order was taken;
  /// kInvalidArgument for no sequence, one twice, a negative layer, or a canary of an item that is
  /// not there.
  void order_round(std::span<const StepItem> items, CanaryOrder canary = {});
  /// The order is about to be executed.
  void order_taken();
  /// Ends an open step: the sequence grows by `accepted` of its tokens (0 .. tokens); pages that it
  /// got for the others stay with it. A round of it that was ordered and not taken goes on without
  /// it. Throws, and the step stays open, kInvalidArgument for a number that does not fit,
  /// kFailedPrecondition without an open step, or with accepted > 0 before a round of it was taken:
  /// no worker has its rows then.
  void commit(SequenceId id, std::int32_t accepted);
  /// The open step of a sequence: its tokens, or 0.
  [[nodiscard]] std::int32_t open_tokens(SequenceId id) const;
  /// Throws kFailedPrecondition for a sequence that is in an open step.
  void check_not_open(SequenceId id) const;

 private:
  void check_owners(const Sequence& s, std::int64_t length) const;
  void check_commit(SequenceId id, std::int32_t accepted) const;
  void withdraw(SequenceId id);
  void grow(const Sequence& s, std::int64_t length);
  [[nodiscard]] std::int32_t place_leaf(const Sequence& s, std::size_t leaf);

  PoolLedger& ledger_;
  Order& order_;
  struct Step {
    std::int32_t tokens = 0;
    bool taken = false;  // an order with a round of it was taken
  };
  std::unordered_map<SequenceId, Step> open_;
};

}  // namespace tributary
