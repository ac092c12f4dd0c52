// A rank's plans for the rounds of an order: one, or one for each half.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/cache/sequence_table.h"
#include "core/plan/plan.h"
#include "core/round/round.h"
#include "core/sequencer/order.h"

namespace tributary {

/// Made from the table and the order alone, so that all ranks come to the same parts. Kept while
/// the same items come again and the table says the same of them.
class RoundPlans {
 public:
  /// Arguments as of PlanBuilder.
  RoundPlans(int workers, int rank, int leaf_tokens, bool own_leaf_states)
      : workers_(workers), builder_(workers, rank, leaf_tokens, own_leaf_states) {}

  struct Part {
    std::size_t begin = 0, items = 0;  // of the order's step
    Routing routing;
    RankPlan plan;
    ExchangeVolume volume;
  };
  using Choose = std::function<Exchange(const Routing&)>;

  /// Plans the order's step, unless the plans are at hand: true then. Throws as build_routing().
  bool prepare(const Order& order, const SequenceTable& table, const Choose& choose);
  /// The table says something new of a sequence.
  void forget(SequenceId id);

  [[nodiscard]] std::span<const Part> parts() const noexcept {
    return std::span(parts_).first(count_);
  }
  /// What runs, item i of the step at layer item_layer[i]; the first parts().size() of them.
  [[nodiscard]] std::array<RoundPart, RoundExecutor::kMostParts> round(
      RoundProgram::Layers item_layer) const;
  [[nodiscard]] RoundProgram::Layers layers(const Part& part,
                                            RoundProgram::Layers item_layer) const {
    return item_layer.subspan(part.begin, part.items);
  }
  /// Attention work of each worker: rows x new tokens.
  [[nodiscard]] std::vector<std::int64_t> worker_rows() const;
  /// Workers per sequence.
  [[nodiscard]] double mean_spread() const;

 private:
  int workers_;
  PlanBuilder builder_;
  std::array<Part, RoundExecutor::kMostParts> parts_;
  std::size_t count_ = 0;
  std::vector<StepItem> planned_;  // what the plans are of; empty: nothing
};

}  // namespace tributary
