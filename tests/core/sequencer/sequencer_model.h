// A sequencer beside an independent account of its state: lengths and epochs are kept by the
// simplest rules, pages and loads are recounted from the table after every call.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "core/sequencer/sequencer.h"

namespace tributary {

class SequencerModel {
 public:
  explicit SequencerModel(const SequencerConfig& config);

  struct Expected {
    std::int64_t tag = 0, prompt = 0, limit = 0, length = 0;
    std::uint32_t epoch = 1;
  };

  /// The sequencer's own functions; each updates the model too.
  std::optional<SequenceId> admit(const AdmitRequest& request, const AdmitAs& as = {});
  void open_step(const std::vector<StepItem>& requests);
  void order_round(const std::vector<StepItem>& items, CanaryOrder canary = {});
  void commit(SequenceId id, std::int32_t accepted);
  /// Opens steps and orders a round of their first layer.
  void begin(const std::vector<StepItem>& requests);
  /// Commits nothing of any open step.
  void abort_all();
  bool raise_limit(SequenceId id, std::int64_t limit_tokens);
  void truncate(SequenceId id, std::int64_t length);
  void free(SequenceId id);
  void close(SequenceId id);
  void release_closed(std::uint64_t drained_round);

  /// As LeafMoves::order_copies().
  void order_copies(std::int64_t most);
  void order_ended(bool ok);

  /// Takes the order, encodes and decodes it, and applies it to the replica. Its step must be the
  /// one that was ordered.
  Order take_order();

  /// Fails the test unless everything adds up: lengths, epochs, limits; used + free pages and
  /// reservations; no page with two owners; loads; and the replica, if all orders were taken.
  void check() const;

  [[nodiscard]] Sequencer& sequencer() { return sequencer_; }
  [[nodiscard]] const std::map<SequenceId, Expected>& sequences() const { return expected_; }
  struct Open {
    std::int32_t tokens = 0;
    bool taken = false;
  };
  [[nodiscard]] const std::map<SequenceId, Open>& open_steps() const { return open_; }
  /// A round was ordered since the last order.
  [[nodiscard]] bool round_ordered() const { return !pending_.empty(); }
  [[nodiscard]] std::uint64_t round() const { return round_; }

 private:
  void check_sequences() const;
  void check_pages() const;
  void check_loads() const;
  void check_copies(const Order& order);

  SequencerConfig config_;
  Sequencer sequencer_;
  SequenceTable replica_;
  std::map<SequenceId, Expected> expected_;
  std::map<SequenceId, Open> open_;
  struct Item {
    StepItem request;
    bool canary = false;
  };
  std::vector<Item> pending_;
  struct Closed {
    std::uint64_t round = 0;
    Sequence sequence;
  };
  std::vector<Closed> closed_;
  std::vector<PageCopy>
      last_pages_;       // of leaves that grow, of orders since the last that succeeded
  bool ordered_ = true;  // nothing was decided since the last order
  std::uint64_t round_ = 0;
};

}  // namespace tributary
