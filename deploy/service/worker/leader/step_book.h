// The state of each sequence's prompt and of its open step, and the consequences for a client's
// request. Deciding changes nothing; the book changes only when it is told what was done.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/base/deadline.h"
#include "core/cache/sequence_table.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/protocol/pool_messages.h"
#include "deploy/service/protocol/worker_messages.h"

namespace tributary {

/// The workers that hold the first `tokens` rows of a sequence now.
[[nodiscard]] std::vector<Extent> holders(const Sequence& sequence, std::int64_t tokens,
                                          int leaf_tokens);

class StepBook {
 public:
  StepBook(int layers, int leaf_tokens) : layers_(layers), leaf_tokens_(leaf_tokens) {}

  /// Adds a sequence whose prompt is pushed by a client; without a prompt it is ready.
  /// What a control plane that restarts has to know of an admission.
  struct Idempotency {
    std::string key, secret;
  };
  void add(const Sequence& sequence, Idempotency idempotency, Time now);
  void remove(SequenceId id);
  /// Takes an owner's report about its rows; an unexpected sequence or worker is ignored. Returns
  /// whether the sequence is known and all of its prompt has arrived.
  bool progress(const wire::Progress& progress);

  /// The action for a request. If `outcome` is ok: first commit the open step with `commit` tokens
  /// (if there is a value), then, for an item, open a step if `open`.
  struct Decision {
    wire::Outcome outcome;
    std::optional<std::int32_t> commit;
    bool open = false;
    bool filling = false;  // refused because rows of the prompt are missing
  };
  /// `sequence` is the sequencer's, null for an unknown one.
  [[nodiscard]] Decision decide(const StepItem& item, const Sequence* sequence) const;
  /// For kTruncate and kExtend an ok outcome means that the sequencer may be asked. A commit of
  /// nothing while an item waits is allowed: the caller drops that item.
  [[nodiscard]] Decision decide(const wire::ControlItem& item, const Sequence* sequence) const;

  // The functions below record what was done. The sequence is known.

  void opened(const StepItem& item, Time now);
  /// Whether an item of the open step waits for its round.
  void set_waiting(SequenceId id, bool waiting);
  /// Nothing happens where its step is not open.
  void ran(const StepItem& item);
  struct Closed {
    Time opened{};
    Time before{};              // the commit before it, or the admission
    bool first_commit = false;  // there was none
  };
  /// Records that the open step has ended, with new tokens or without.
  Closed closed(SequenceId id, bool committed, Time now);

  /// Rows of `lost` leaves (PoolLedger::Running) are to come again, to the owners that the leaves
  /// have now: the epoch may be a new one. Without an open step.
  void lost(const Sequence& sequence, std::span<const std::int32_t> lost);
  /// This worker is gone, and nobody waits for its words. Call it before lost(): what it had
  /// besides the lost leaves has moved on before, with all its rows.
  void lose_worker(int rank);

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
  /// How many sequences wait for rows of their prompt. None of them has an open step.
  [[nodiscard]] std::size_t filling() const noexcept { return filling_; }
  [[nodiscard]] std::size_t open_steps() const noexcept { return open_steps_; }
  [[nodiscard]] bool waiting(SequenceId id) const { return entries_.at(id).waiting; }
  [[nodiscard]] SequenceState state(SequenceId id) const;
  [[nodiscard]] std::vector<SequenceId> ids() const;
  [[nodiscard]] const Idempotency& idempotency(SequenceId id) const {
    return entries_.at(id).idempotency;
  }
  /// The parts of the prompt and the workers that receive them: the owners at admission, or after a
  /// loss, even if leaves have moved since.
  [[nodiscard]] const std::vector<Extent>& extents(SequenceId id) const {
    return entries_.at(id).extents;
  }
  /// The missing part of the prompt, in words; empty when all of it has arrived.
  [[nodiscard]] std::string missing(SequenceId id) const;

 private:
  struct Owner {
    std::int32_t rank = 0;    // or kNoWorker: the rows wait for room
    std::uint32_t since = 0;  // the epoch in which it began to expect these rows
    bool renewed = false;     // after a loss: what it told before is about other rows
    std::int64_t done = 0;
    std::int64_t total = 0;
    std::int32_t missing_layer = 0;
    std::int64_t missing_position = 0;
    [[nodiscard]] bool complete() const noexcept { return missing_layer < 0; }
  };
  struct Step {
    std::int64_t base = 0;
    std::int32_t tokens = 0;
    int layers_left = 0;
    std::vector<bool> done;  // by layer
    Time opened{};
  };
  /// The rows of a leaf that some worker has got, or is to get.
  struct Share {
    std::int32_t rank = 0;
    std::int64_t rows = 0;  // of a layer
  };
  struct Entry {
    std::vector<Extent> extents;
    std::vector<Share> shares;  // by leaf
    std::vector<Owner> owners;
    std::size_t incomplete = 0;  // owners
    std::optional<Step> step;
    bool waiting = false;
    Idempotency idempotency;
    Time last{};  // commit, or admission
    bool committed = false;
  };

  [[nodiscard]] static std::string missing(const Entry& entry);
  [[nodiscard]] static Owner& expect(std::vector<Owner>& owners, std::int32_t rank,
                                     std::uint32_t since, std::int64_t position);
  [[nodiscard]] std::string missing_layers(const Step& step) const;
  /// Adds the commit of the step up to `length` to `decision`.
  void decide_commit(const Entry& entry, std::int64_t length, Decision& decision) const;

  int layers_;
  int leaf_tokens_;
  std::size_t open_steps_ = 0;
  std::size_t filling_ = 0;
  std::unordered_map<SequenceId, Entry> entries_;
};

}  // namespace tributary
