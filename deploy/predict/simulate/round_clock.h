// The predicted time of a round of all running sequences of a pool, kept up to date while sequences
// come, grow and go: a round costs a walk over the workers, not over the sequences.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/cost/round_work.h"
#include "core/placement/pool_load.h"
#include "core/plan/plan.h"
#include "core/round/phases.h"

namespace tributary {

/// The traffic of a round, all layers and workers, by the link that it takes.
struct LinkBytes {
  double node = 0;     // between workers of one node
  double network = 0;  // between nodes

  friend bool operator==(const LinkBytes&, const LinkBytes&) = default;
};

struct RoundTime {
  Exchange exchange = Exchange::kAllToAll;  // the faster one, or the requested one
  PhaseTimes phase_us{};                    // of all layers; per phase the slowest worker
  double other_us = 0;
  double step_us = 0;
  LinkBytes bytes;
};

/// Predicts a round of one new token per sequence, with the result that predict_step has for its
/// full plan. The sequencer's own PoolLoad is behind by the tokens that are not committed yet; this
/// one is not.
class RoundClock {
 public:
  /// Throws kInvalidArgument as predict_step. `exchange` may be kAuto.
  RoundClock(const CostModelConfig& config, int workers, Exchange exchange);

  /// Adds a sequence with `rows` keys, the one of its new token included.
  void add(const Sequence& sequence, std::int64_t rows);
  /// `rows` as of now: those of add(), and one for each tick() since then. Between the two the
  /// owners of the leaves must stay, and neither the last leaf nor topk be passed: when a sequence
  /// opens a leaf or gets longer than topk, remove it before and add it after.
  void remove(const Sequence& sequence, std::int64_t rows);
  /// Gives every sequence one key more, in its last leaf.
  void tick();

  [[nodiscard]] RoundTime time() const;
  /// The busiest worker's attended keys over the mean; 1 if there are none.
  [[nodiscard]] double balance() const;
  [[nodiscard]] std::int64_t sequences() const noexcept { return load_.sequences(); }

 private:
  /// Sequences whose last leaf a worker holds, and those of them that attend to all rows.
  struct Growing {
    std::int64_t all = 0, attended = 0;
  };

  /// Counts the sequence of runs_ among those that grow.
  void count(std::int64_t rows, std::int64_t sign);
  [[nodiscard]] const std::vector<LeafRun>& runs_of(const Sequence& sequence, std::int64_t rows);
  [[nodiscard]] RoundTime time(Exchange exchange) const;

  RoundPrices prices_;
  Exchange exchange_;
  PoolLoad load_;
  std::vector<Growing> growing_;  // by worker
  std::vector<LeafRun> runs_;     // of the call in progress
};

}  // namespace tributary
