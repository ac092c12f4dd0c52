#include "core/pool/round_plans.h"

#include <algorithm>

namespace tributary {

bool RoundPlans::prepare(const Order& order, const SequenceTable& table, const Choose& choose) {
  const std::span<const StepItem> items(order.step);
  const auto half = static_cast<std::size_t>(order.first_half);
  const std::array sizes{half > 0 ? half : items.size(), half > 0 ? items.size() - half : 0};
  if (parts_[0].items == sizes[0] && std::ranges::equal(items, planned_)) return true;
  planned_.clear();
  count_ = half > 0 ? 2 : 1;
  std::size_t begin = 0;
  for (std::size_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    part.begin = begin;
    part.items = sizes[p];
    begin += part.items;
    if (p >= count_) continue;
    build_routing(table, items.subspan(part.begin, part.items), workers_, part.routing);
    const Exchange exchange = choose(part.routing);
    builder_.build(part.routing, exchange, part.plan);
    part.volume = exchange_volume(part.routing, workers_, exchange);
  }
  planned_.assign(items.begin(), items.end());
  return false;
}

void RoundPlans::forget(SequenceId id) {
  if (std::ranges::find(planned_, id, &StepItem::id) != planned_.end()) planned_.clear();
}

std::array<RoundPart, RoundExecutor::kMostParts> RoundPlans::round(
    RoundProgram::Layers item_layer) const {
  return {RoundPart{parts_[0].plan, layers(parts_[0], item_layer)},
          RoundPart{parts_[1].plan, layers(parts_[1], item_layer)}};
}

std::vector<std::int64_t> RoundPlans::worker_rows() const {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(workers_), 0);
  for (const Part& part : parts()) {
    std::ranges::transform(rows, part.routing.worker_rows, rows.begin(), std::plus<>());
  }
  return rows;
}

double RoundPlans::mean_spread() const {
  std::size_t workers = 0;
  for (const Part& part : parts()) workers += part.routing.spread.size();
  return static_cast<double>(workers) / static_cast<double>(planned_.size());
}

}  // namespace tributary
