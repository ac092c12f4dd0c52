#include "deploy/service/worker/leader/pool_meter.h"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace tributary {
namespace {

constexpr std::chrono::seconds kQuarter{15};

}  // namespace

void PoolMeter::round_ended(const RoundReport& report, std::size_t items, double seconds,
                            double canary_bound, Time now) {
  ++totals.rounds;
  if (!report.status.ok()) ++totals.failed_rounds;
  totals.batch.observe(static_cast<double>(items));
  totals.round_seconds.observe(seconds);
  for (std::size_t p = 0; p < kPhases; ++p) {
    totals.phase_seconds[p].observe(report.phase_us[p] * 1e-6);
  }
  totals.exchanged_bytes += report.exchanged_bytes;
  // A round that failed early says nothing about its workers.
  if (report.worker_rows.size() == report.worker_attend_us.size()) {
    attended_.resize(report.worker_rows.size());
    for (std::size_t r = 0; r < report.worker_rows.size(); ++r) {
      attended_[r].rows += report.worker_rows[r] * report.rounds;
      attended_[r].seconds += report.worker_attend_us[r] * 1e-6;
    }
  }
  if (!report.worker_rows.empty()) {
    if (now >= present_.begin + kQuarter) {
      last_ = present_;
      present_ = {.begin = now};
    }
    present_.busiest += static_cast<double>(std::ranges::max(report.worker_rows));
    present_.mean += std::accumulate(report.worker_rows.begin(), report.worker_rows.end(), 0.0) /
                     static_cast<double>(std::max(report.members, 1));
  }
  if (report.canary_checked) {
    ++totals.canaries;
    totals.canary_error = report.canary_error;
    // Written so that a NaN is a failure.
    if (!(report.canary_error <= canary_bound)) ++totals.canary_failures;
  }
}

double PoolMeter::balance(Time now) const {
  Rows sum;
  for (const Rows& rows : {last_, present_}) {
    if (now >= rows.begin + 2 * kQuarter) continue;
    sum.busiest += rows.busiest;
    sum.mean += rows.mean;
  }
  return sum.mean > 0 ? sum.busiest / sum.mean : 0;
}

void PoolMeter::fill(Heartbeat& heartbeat, const std::vector<wire::Beat>& beats, Time now) const {
  heartbeat.metrics = totals;
  PoolMetrics& metrics = heartbeat.metrics;
  metrics.balance = balance(now);
  for (const wire::Beat& beat : beats) {
    metrics.ingested_rows += beat.ingested_rows;
    metrics.ingested_bytes += beat.ingested_bytes;
    metrics.pulled_rows += beat.pulled_rows;
    metrics.pulled_bytes += beat.pulled_bytes;
    metrics.connections += beat.connections;
    metrics.accept_pauses += beat.accept_pauses;
    for (std::size_t i = 0; i < wire::kRefusals; ++i) metrics.refused_rows[i] += beat.refused[i];
    for (std::size_t i = 0; i < wire::kLimits; ++i) metrics.limited[i] += beat.limited[i];
    for (std::size_t i = 0; i < DurationHistogram::kBuckets && i < beat.ingest_us_buckets.size();
         ++i) {
      metrics.ingest_seconds.counts[i] += beat.ingest_us_buckets[i];
    }
    metrics.ingest_seconds.sum += beat.ingest_us_sum * 1e-6;
  }
  const std::size_t workers = std::min(heartbeat.workers.size(), attended_.size());
  for (std::size_t r = 0; r < workers; ++r) {
    heartbeat.workers[r].attended_rows = attended_[r].rows;
    heartbeat.workers[r].attend_seconds = attended_[r].seconds;
  }
}

}  // namespace tributary
