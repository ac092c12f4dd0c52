#include "deploy/service/worker/leader/cost_meter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/round/phases.h"

namespace tributary {
namespace {

/// The slowest worker's phases. All workers enter the exchange of partial states, which ends with
/// the last worker's attention; the time that the fastest one waits for that is not the exchange's.
WorkerTimes measured_times(const RoundReport& report) {
  const auto us = [&](Phase phase) { return report.phase_us[static_cast<std::size_t>(phase)]; };
  double waited_us = 0;
  const bool all = std::cmp_equal(report.members, report.worker_attend_us.size());
  if (all && !report.worker_attend_us.empty()) {
    const auto [least, most] = std::ranges::minmax(report.worker_attend_us);
    waited_us = most - least;
  }
  return {.project_us = us(Phase::kProject),
          .queries_us = us(Phase::kQueryExchange),
          .attend_us = us(Phase::kAttend),
          .states_us = std::max(0.0, us(Phase::kPartialExchange) - waited_us),
          .combine_us = us(Phase::kCombine)};
}

/// Times of one round by kind of work, in the order of kCostKinds.
std::array<double, kCostKinds.size()> by_kind(const WorkerTimes& times) {
  return {times.attend_us, times.queries_us + times.states_us, times.combine_us};
}

}  // namespace

CostMeter::CostMeter(const CostModelConfig& model, int workers) : prices_(model, workers) {}

void CostMeter::round_ended(const RoundReport& report, std::size_t items, std::int64_t tokens,
                            const PoolLoad& load) {
  if (!report.status.ok() || report.rounds != 1 || items == 0 || !std::cmp_equal(items, tokens) ||
      !std::cmp_equal(items, load.sequences())) {
    return;
  }
  const auto predicted = by_kind(load.round(report.exchange, prices_).slowest);
  const auto measured = by_kind(measured_times(report));
  for (std::size_t i = 0; i < factors_.size(); ++i) {
    // Written so that NaN does not count.
    if (!(predicted[i] >= kShortestUs && measured[i] >= kShortestUs)) continue;
    const double seen = std::clamp(measured[i] / predicted[i], kLeast, kMost);
    factors_[i] *= std::pow(seen / factors_[i], kWeight);
  }
}

}  // namespace tributary
