#include "deploy/service/worker/cost_meter.h"

#include <algorithm>
#include <utility>

#include "core/round/phases.h"

namespace tributary {
namespace {

/// Rounds between two corrections of placement's constants: a tenth of a second of short rounds.
constexpr std::uint64_t kRoundsPerCorrection = 128;

/// The slowest worker's phases. The exchange of partial states is entered by all and ends with the
/// last worker's attention: what the fastest one waits for that is not the exchange's.
WorkerTimes measured_times(const RoundReport& report) {
  const auto us = [&](Phase phase) { return report.phase_us[static_cast<std::size_t>(phase)]; };
  double waited_us = 0;
  if (!report.worker_attend_us.empty()) {
    const auto [least, most] = std::ranges::minmax(report.worker_attend_us);
    waited_us = most - least;
  }
  return {.project_us = us(Phase::kProject),
          .queries_us = us(Phase::kQueryExchange),
          .attend_us = us(Phase::kAttend),
          .states_us = std::max(0.0, us(Phase::kPartialExchange) - waited_us),
          .combine_us = us(Phase::kCombine)};
}

}  // namespace

CostMeter::CostMeter(const CostModelConfig& model, int workers) : prices_(model, workers) {}

bool CostMeter::round_ended(const RoundReport& report, std::size_t items, std::int64_t tokens,
                            const PoolLoad& load) {
  // Phases of halves are what is left of them beside each other.
  if (!report.status.ok() || report.rounds != 1 || report.halves || items == 0 ||
      !std::cmp_equal(items, tokens) || !std::cmp_equal(items, load.sequences())) {
    return false;
  }
  const std::uint64_t before = correction_.observed();
  correction_.observe(load.round(report.exchange, prices_).slowest, measured_times(report));
  return correction_.observed() != before && correction_.observed() % kRoundsPerCorrection == 0;
}

bool CostMeter::take_over(const CostFactors& learned) {
  if (correction_.observed() > 0) return false;
  const CostCorrection start(learned);
  const bool changes = start.factors() != correction_.factors();
  correction_ = start;
  return changes;
}

}  // namespace tributary
