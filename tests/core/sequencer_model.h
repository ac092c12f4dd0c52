// A sequencer with an independent account of what it must be at: lengths and epochs kept by the
// simplest rules, pages and loads recounted from the table after every call.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "core/pool/sequencer.h"

namespace tributary {

class SequencerModel {
 public:
  explicit SequencerModel(const SequencerConfig& config);

  struct Expected {
    std::int64_t tag = 0, prompt = 0, limit = 0, length = 0;
    std::uint32_t epoch = 1;
  };

  /// As of the sequencer, with the model following.
  std::optional<SequenceId> admit(const AdmitRequest& request);
  void begin_step(const std::vector<Sequencer::StepRequest>& requests);
  void commit_step(const std::vector<std::int32_t>& accepted);
  void abort_step();
  void truncate(SequenceId id, std::int64_t length);
  void free(SequenceId id);

  /// Takes the order, sends it through its bytes, and applies it to the replica; the step in it
  /// must be the open one.
  Order take_order();

  /// Fails the running test unless everything adds up: lengths, epochs, limits; used + free pages
  /// and reservations; no page with two owners; loads; the replica, when all orders were taken.
  void check() const;

  [[nodiscard]] Sequencer& sequencer() { return sequencer_; }
  [[nodiscard]] const std::map<SequenceId, Expected>& sequences() const { return expected_; }
  [[nodiscard]] bool step_open() const { return !open_.empty(); }
  [[nodiscard]] bool in_step(SequenceId id) const;
  [[nodiscard]] const std::vector<Sequencer::StepRequest>& open_step() const { return open_; }

 private:
  void check_sequences() const;
  void check_pages() const;
  void check_loads() const;

  SequencerConfig config_;
  Sequencer sequencer_;
  SequenceTable replica_;
  std::map<SequenceId, Expected> expected_;
  std::vector<Sequencer::StepRequest> open_;
  bool ordered_ = true;  // nothing was decided since the last order
  std::uint64_t round_ = 0;
};

}  // namespace tributary
