// The predicted time of a round of all running sequences of a pool, kept up to date while sequences
// come, grow and go: a round costs a walk over the workers, not over the sequences.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/cost/cost_model.h"
#include "core/plan/merge_tree.h"
#include "core/plan/plan.h"
#include "core/round/phases.h"

namespace tributary {

/// What travels in a round, all layers and workers, by the link that it takes.
struct LinkBytes {
  double node = 0;     // between workers of one node
  double network = 0;  // between nodes

  friend bool operator==(const LinkBytes&, const LinkBytes&) = default;
};

struct RoundTime {
  Exchange exchange = Exchange::kAllToAll;  // the one that is faster, or the one that was asked for
  PhaseTimes phase_us{};                    // of all layers; per phase the slowest worker
  double other_us = 0;
  double step_us = 0;
  LinkBytes bytes;
};

/// Gives for one new token of each sequence what predict_step gives for the full plan of the round.
class RoundClock {
 public:
  /// Throws kInvalidArgument as predict_step. `exchange` may be kAuto.
  RoundClock(const CostModelConfig& config, int workers, Exchange exchange);

  /// A sequence takes part with `rows` keys, the one of its new token included.
  void add(const Sequence& sequence, std::int64_t rows) { count(sequence, rows, 1); }
  /// `rows` as of now: those of add(), and one for each tick() since then. Between the two the
  /// owners of the leaves must stay, and the last leaf must not be passed: where a sequence opens a
  /// leaf, remove it before and add it after.
  void remove(const Sequence& sequence, std::int64_t rows) { count(sequence, rows, -1); }
  /// Every sequence has one key more, in its last leaf.
  void tick();

  [[nodiscard]] RoundTime time() const;
  /// The busiest worker's keys over the mean; 1 where there is none.
  [[nodiscard]] double balance() const;
  [[nodiscard]] std::int64_t sequences() const noexcept { return sequences_; }

 private:
  // 2^31 leaves at most: a sequence is below 2^32 tokens.
  static constexpr std::size_t kLevels = 32;
  /// Merges of all sequences on one worker.
  struct Merges {
    std::array<std::int32_t, kLevels> level{};
    std::int64_t total = 0;
    int levels = 0;  // that are not empty

    void add(std::size_t at, std::int32_t merges);
  };
  /// What one worker has to do in a layer of a round. Records are of one token each.
  struct Work {
    std::int64_t rows = 0;
    std::int64_t growing = 0;  // sequences whose last leaf it holds
    std::int64_t tasks = 0;
    std::int64_t homed = 0;
    std::int64_t queries_out = 0;  // records, one for each other worker of a spread
    std::int64_t queries_near = 0, queries_far = 0;
    std::int64_t roots_near = 0, roots_far = 0;
    std::int64_t shared_queries = 0;  // records that it contributes to an all-gather
    std::int64_t shared_roots = 0;
    Merges local, home;
  };
  struct Records {
    double near = 0, far = 0;
  };

  void count(const Sequence& sequence, std::int64_t rows, int sign);
  void count_home_merges(const Sequence& sequence, std::int64_t leaves, int sign);
  [[nodiscard]] bool same_node(std::int64_t a, std::int64_t b) const;
  [[nodiscard]] RoundTime time(Exchange exchange) const;
  [[nodiscard]] double project_us(const Work& work) const;
  [[nodiscard]] double attend_us(const Work& work) const;
  [[nodiscard]] double merges_us(const Merges& merges) const;
  [[nodiscard]] double records_us(double records) const;
  [[nodiscard]] double exchange_us(Exchange exchange, const Records& records,
                                   double record_bytes) const;

  CostModelConfig config_;
  int workers_;
  Exchange exchange_;
  double row_us_;
  std::int64_t sequences_ = 0;
  std::int64_t travelling_queries_ = 0;  // sequences that are exchanged
  std::int64_t travelling_roots_ = 0;
  std::vector<Work> work_;
  // Of the call in progress.
  std::vector<TreeNode> nodes_;
  std::vector<NodeState> states_;
  std::vector<std::int32_t> spread_;
  MergeSchedule schedule_;
};

}  // namespace tributary
