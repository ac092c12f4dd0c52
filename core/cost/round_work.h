// The work of one worker in a round, in units of the machine's constants, and its time. This is the
// one place where a constant meets a count: predictions of a plan and of a load share it.
#pragma once

#include <cstdint>
#include <limits>

#include "core/base/ceil_div.h"
#include "core/cost/machine_costs.h"
#include "core/model/attention_shape.h"
#include "core/plan/plan.h"
#include "core/round/phases.h"

namespace tributary {

/// Projections of one token and layer at its home, where the pool does them; zeros where its client
/// does.
struct ProjectionWork {
  double weight_bytes = 0;  // of a layer, on every worker
  double token_gflop = 0;
};

struct CostModelConfig {
  MachineCosts costs;
  AttentionShape attention;
  ProjectionWork projection;
  int layers = 1;
  int leaf_tokens = 2048;
  int workers_per_node = 1;  // workers r / workers_per_node share a node
};

/// Records that a worker receives from others, and the messages of the exchange, by link: `near`
/// counts those from workers of its node.
struct Inbound {
  std::int64_t near = 0, far = 0;
  std::int64_t near_messages = 0, far_messages = 0;
};

/// A sequence as its attention sees it.
struct AttendedLength {
  std::int64_t tokens = 0;
  std::int64_t leaves = 0;  // that they take

  /// The rows that a token is expected to attend to of `own_leaves` of the leaves, which hold
  /// `rows`, where it selects `topk` at most (0: it attends to all). Of a longer sequence, as many
  /// of each leaf: so the number changes only where a leaf begins.
  [[nodiscard]] constexpr std::int64_t rows_of(std::int64_t own_leaves, std::int64_t rows,
                                               std::int64_t topk) const noexcept {
    return topk == 0 || tokens <= topk ? rows : own_leaves * ceil_div(topk, leaves);
  }
};

/// The leaves of a worker.
struct AttendWork {
  std::int64_t leaves = 0;
  std::int64_t rows = 0;        // that are read
  std::int64_t row_tokens = 0;  // sum of rows x new tokens
  std::int64_t merges = 0, merge_levels = 0;
};

struct RoundWork {
  std::int64_t tokens = 0;    // new tokens of the sequences whose home is here
  std::int64_t gathered = 0;  // token records copied together for an all-to-all
  AttendWork attend;
  std::int64_t home_merges = 0, home_merge_levels = 0;
  Inbound queries, states;
};

/// Microseconds of one worker, one layer.
struct WorkerTimes {
  double project_us = 0, queries_us = 0, attend_us = 0, states_us = 0, combine_us = 0;
};

/// Prices of a pool's work.
class RoundPrices {
 public:
  /// Throws kInvalidArgument for fewer than one layer, worker, or worker of a node.
  RoundPrices(const CostModelConfig& config, int workers);

  [[nodiscard]] double project_us(std::int64_t tokens) const;
  [[nodiscard]] double attend_us(const AttendWork& work) const;
  [[nodiscard]] double combine_us(std::int64_t merges, std::int64_t levels) const;
  [[nodiscard]] double gather_us(std::int64_t records) const;
  [[nodiscard]] double queries_us(const Inbound& in, Exchange exchange) const {
    return exchange_us(in, token_bytes_, exchange);
  }
  [[nodiscard]] double states_us(const Inbound& in, Exchange exchange) const {
    return exchange_us(in, state_bytes_, exchange);
  }
  [[nodiscard]] WorkerTimes times(const RoundWork& work, Exchange exchange) const;
  /// Messages in sequence of an all-gather of the pool, by link, without records.
  [[nodiscard]] Inbound gather_messages() const;

  [[nodiscard]] const CostModelConfig& config() const noexcept { return config_; }

 private:
  [[nodiscard]] double exchange_us(const Inbound& in, double record_bytes, Exchange exchange) const;
  [[nodiscard]] double merges_us(std::int64_t merges, std::int64_t levels) const;

  CostModelConfig config_;
  int workers_;
  double token_bytes_, state_bytes_, row_bytes_, row_gflop_;
};

/// The slowest worker of each phase, and the fastest one's attention.
struct RoundTimes {
  WorkerTimes slowest;
  double least_attend_us = std::numeric_limits<double>::infinity();

  void see(const WorkerTimes& worker);
  /// A step of `items` sequences through all layers: workers that meet in an exchange wait for the
  /// slowest.
  [[nodiscard]] double step_us(const CostModelConfig& config, std::int64_t items) const;
  /// The time of each phase of such a step.
  [[nodiscard]] PhaseTimes phase_us(const CostModelConfig& config, std::int64_t items) const;
  /// The time of a step outside its phases: agreement on the end of rounds, its order, late
  /// workers.
  [[nodiscard]] double other_us(const CostModelConfig& config) const;
};

}  // namespace tributary
