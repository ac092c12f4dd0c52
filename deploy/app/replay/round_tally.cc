#include "deploy/app/replay/round_tally.h"

#include <algorithm>
#include <numeric>

namespace tributary {

void RoundTally::add(const RoundReport& round, std::size_t items, std::int64_t pages_used) {
  const std::lock_guard lock(mutex_);
  for (std::size_t p = 0; p < kPhases; ++p) phase_us_[p] += round.phase_us[p];
  worker_rows_.resize(round.worker_rows.size());
  for (std::size_t r = 0; r < worker_rows_.size(); ++r) worker_rows_[r] += round.worker_rows[r];
  spread_sum_ += round.mean_spread * static_cast<double>(items);
  items_ += items;
  figures_.exchange_bytes += round.exchanged_bytes;
  figures_.planned_exchange_bytes += round.planned_bytes;
  figures_.state_bytes += round.state_bytes;
  figures_.peak_pages = std::max(figures_.peak_pages, pages_used);
}

void RoundTally::end_step() {
  const std::lock_guard lock(mutex_);
  for (std::size_t p = 0; p < kPhases; ++p) step_phase_us_[p].push_back(phase_us_[p]);
  const auto rows = std::accumulate(worker_rows_.begin(), worker_rows_.end(), 0.0);
  balance_sum_ += static_cast<double>(std::ranges::max(worker_rows_)) *
                  static_cast<double>(worker_rows_.size()) / rows;
  step_spread_sum_ += spread_sum_ / static_cast<double>(items_);
  phase_us_ = {};
  worker_rows_.clear();
  spread_sum_ = 0;
  items_ = 0;
}

RoundFigures RoundTally::figures() {
  const std::lock_guard lock(mutex_);
  const auto steps = static_cast<double>(std::max<std::size_t>(1, step_phase_us_[0].size()));
  figures_.balance = balance_sum_ / steps;
  figures_.mean_spread = step_spread_sum_ / steps;
  for (std::size_t p = 0; p < kPhases; ++p) figures_.phase_us[p] = percentiles(step_phase_us_[p]);
  return figures_;
}

}  // namespace tributary
