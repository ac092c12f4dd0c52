#include "deploy/app/top/top_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "core/round/round.h"

namespace tributary {
namespace {

/// The increase from `before` to `after`.
template <const auto& Bounds>
Histogram<Bounds> between(const Histogram<Bounds>& before, const Histogram<Bounds>& after) {
  Histogram<Bounds> difference;
  for (std::size_t i = 0; i < difference.counts.size(); ++i) {
    difference.counts[i] =
        after.counts[i] - std::min<std::uint64_t>(before.counts[i], after.counts[i]);
  }
  difference.sum = after.sum - before.sum;
  return difference;
}

template <const auto& Bounds>
double count_of(const Histogram<Bounds>& histogram) {
  double count = 0;
  for (const std::uint64_t bucket : histogram.counts) count += static_cast<double>(bucket);
  return count;
}

/// Linear within a bucket, as Prometheus does it; NaN without observations, infinity above all
/// bounds.
template <const auto& Bounds>
double quantile(const Histogram<Bounds>& histogram, double share) {
  const double rank = share * count_of(histogram);
  double below = 0;
  for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
    const auto here = static_cast<double>(histogram.counts[i]);
    if (here > 0 && below + here >= rank) {
      if (i >= Bounds.size()) return std::numeric_limits<double>::infinity();
      const double low = i == 0 ? 0 : Bounds[i - 1];
      return low + (Bounds[i] - low) * (rank - below) / here;
    }
    below += here;
  }
  return std::nan("");
}

template <const auto& Bounds>
double mean(const Histogram<Bounds>& histogram) {
  const double count = count_of(histogram);
  return count > 0 ? histogram.sum / count : std::nan("");
}

std::string number(double value) {
  if (!std::isfinite(value)) return "-";
  if (value >= 1e6) return fmt::format("{:.1f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.1f}k", value / 1e3);
  return fmt::format("{:.{}f}", value, value >= 100 || value == std::floor(value) ? 0 : 1);
}

std::string seconds(double value) {
  if (std::isnan(value)) return "-";
  if (std::isinf(value)) return fmt::format(">{:.0f}s", kDurationBuckets.back());
  if (value < 1e-3) return fmt::format("{:.0f}us", value * 1e6);
  if (value < 1) return fmt::format("{:.{}f}ms", value * 1e3, value < 0.01 ? 2 : 1);
  return fmt::format("{:.1f}s", value);
}

std::string bytes(double value) {
  constexpr std::array kUnits{"B", "kB", "MB", "GB"};
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1000;
  return fmt::format("{:.{}f} {}", value, unit == 0 || value >= 100 ? 0 : 1, kUnits[unit]);
}

std::string age(std::int64_t ms) {
  const std::int64_t s = ms / 1000;
  if (s < 60) return fmt::format("{}s", s);
  if (s < 3600) return fmt::format("{}m{:02}s", s / 60, s % 60);
  if (s < 86'400) return fmt::format("{}h{:02}m", s / 3600, s / 60 % 60);
  return fmt::format("{}d{:02}h", s / 86'400, s / 3600 % 24);
}

/// `[####--      ]`: used, reserved, free.
std::string bar(std::int64_t used, std::int64_t reserved, std::int64_t total) {
  constexpr int kCells = 20;
  std::string cells(kCells, ' ');
  // Rounded up: a page in use shows.
  const auto end = [&](std::int64_t pages) {
    return total <= 0 ? 0
                      : static_cast<std::size_t>(
                            std::min<std::int64_t>(kCells, (pages * kCells + total - 1) / total));
  };
  std::fill_n(cells.begin(), end(used + reserved), '-');
  std::fill_n(cells.begin(), end(used), '#');
  return '[' + cells + ']';
}

double percent(double part, double whole) {
  return whole > 0 ? 100 * part / whole : 0;
}

/// Escapes control bytes of a name or a message, so that they do nothing to the terminal.
std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  return out;
}

void add(std::vector<std::string>& lines, std::string line) {
  if (line.size() > kTopWidth) line.resize(kTopWidth);
  while (line.ends_with(' ')) line.pop_back();
  lines.push_back(std::move(line));
}

void add_activity(std::vector<std::string>& lines, const PoolMetrics& before,
                  const PoolMetrics& now, double elapsed) {
  const auto rate = [&](std::uint64_t PoolMetrics::*field) {
    return static_cast<double>(now.*field - std::min(before.*field, now.*field)) / elapsed;
  };
  const auto steps = between(before.step_seconds, now.step_seconds);
  const auto waits = between(before.wait_seconds, now.wait_seconds);
  add(lines, fmt::format("  {} tokens/s   {} rounds/s of {} items   rows in {}/s   exchanged {}/s",
                         number(rate(&PoolMetrics::tokens)), number(rate(&PoolMetrics::rounds)),
                         number(mean(between(before.batch, now.batch))),
                         bytes(rate(&PoolMetrics::ingested_bytes)),
                         bytes(rate(&PoolMetrics::exchanged_bytes))));
  const std::string balance = now.balance > 0 ? fmt::format("{:.2f}", now.balance) : "-";
  add(lines, fmt::format("  step p50 {} p99 {}   waited p99 {}   balance {}   clients {}",
                         seconds(quantile(steps, 0.5)), seconds(quantile(steps, 0.99)),
                         seconds(quantile(waits, 0.99)), balance, now.connections));
  std::uint64_t refused = now.refused_items;
  for (const std::uint64_t rows : now.refused_rows) refused += rows;
  if (now.canary_failures + now.failed_rounds + now.leases_expired + refused > 0) {
    add(lines,
        fmt::format("  since its start: {} WRONG of {} recomputed, {} rounds failed, {} leases "
                    "expired, {} refused",
                    now.canary_failures, now.canaries, now.failed_rounds, now.leases_expired,
                    refused));
  }
}

void add_phases(std::vector<std::string>& lines, const PoolMetrics& before,
                const PoolMetrics& now) {
  std::array<DurationHistogram, kPhases> phases;
  double total = 0;
  for (std::size_t i = 0; i < kPhases; ++i) {
    phases[i] = between(before.phase_seconds[i], now.phase_seconds[i]);
    total += phases[i].sum;
  }
  std::string names = "  phase   ";
  std::string means = "  mean    ";
  std::string shares = "  share   ";
  constexpr auto kCell = "{:>10}";
  for (std::size_t i = 0; i < kPhases; ++i) {
    names += fmt::format(fmt::runtime(kCell), kPhaseColumns[i]);
    means += fmt::format(fmt::runtime(kCell), seconds(mean(phases[i])));
    shares += total > 0 ? fmt::format("{:>9.0f}%", percent(phases[i].sum, total))
                        : fmt::format(fmt::runtime(kCell), "-");
  }
  add(lines, names);
  add(lines, means);
  add(lines, shares);
}

void add_workers(std::vector<std::string>& lines, const TierSample::Pool& pool) {
  add(lines, "  rank  state     pages: # used - kept   used  promised  homes   heard  host");
  std::vector<TierSample::Worker> workers = pool.workers;
  // Workers that need a look come first: those not serving, then the longest silent, then the
  // fullest.
  const auto fullness = [](const TierSample::Worker& w) {
    return percent(static_cast<double>(w.pages_used + w.pages_reserved),
                   static_cast<double>(w.pages_total));
  };
  std::ranges::stable_sort(workers, [&](const auto& a, const auto& b) {
    const bool a_serves = a.state == "serving";
    const bool b_serves = b.state == "serving";
    return a_serves != b_serves ? b_serves : fullness(a) > fullness(b);
  });
  for (const TierSample::Worker& w : workers) {
    const auto total = static_cast<double>(w.pages_total);
    add(lines,
        fmt::format("  {:>4}  {:<8}  {} {:>3.0f}%      {:>3.0f}%  {:>5}  {:>6}  {}", w.rank,
                    printable(w.state), bar(w.pages_used, w.pages_reserved, w.pages_total),
                    percent(static_cast<double>(w.pages_used), total),
                    percent(static_cast<double>(w.pages_reserved), total), w.homes,
                    seconds(static_cast<double>(w.heartbeat_age_ms) / 1e3), printable(w.host)));
  }
}

/// Seconds between two samples, for rates: each counts from its own time.
double seconds_between(const TierSample& before, std::int64_t before_age_ms, const TierSample& now,
                       std::int64_t now_age_ms) {
  // A pool that has sent nothing between the samples has no rates, not infinite ones.
  constexpr double kLeast = 0.1;
  const std::chrono::duration<double> apart =
      (now.taken - std::chrono::milliseconds(now_age_ms)) -
      (before.taken - std::chrono::milliseconds(before_age_ms));
  return std::max(kLeast, apart.count());
}

void add_pool(std::vector<std::string>& lines, const TierSample& before, const TierSample& now,
              const TierSample::Pool& pool) {
  add(lines, fmt::format("pool {}: {}, {} workers, {} sequences{}", printable(pool.name),
                         printable(pool.state), pool.workers.size(), pool.sequences,
                         pool.lost_because.empty() ? "" : ": " + printable(pool.lost_because)));
  if (pool.state == "lost") return;
  if (pool.metrics) {
    const auto earlier = std::ranges::find_if(before.pools, [&](const TierSample::Pool& other) {
      return other.name == pool.name && other.run == pool.run && other.metrics.has_value();
    });
    // All counts of a pool that has just registered are new.
    const PoolMetrics nothing{};
    const bool known = earlier != before.pools.end();
    const PoolMetrics& since = known ? *earlier->metrics : nothing;
    add_activity(
        lines, since, *pool.metrics,
        seconds_between(before, known ? earlier->heartbeat_age_ms : 0, now, pool.heartbeat_age_ms));
    add_phases(lines, since, *pool.metrics);
  }
  add_workers(lines, pool);
}

}  // namespace

std::vector<std::string> top_lines(const std::string& url, const TierSample& before,
                                   const TierSample& now) {
  const double elapsed = seconds_between(before, 0, now, 0);
  const auto rate = [&](double earlier, double later) {
    return std::max(0.0, later - earlier) / elapsed;
  };
  std::vector<std::string> lines;
  add(lines, fmt::format("tributary {}  {}  {}  up {}", printable(now.version), printable(url),
                         now.ready ? "ready" : "NOT READY", age(now.uptime_ms)));
  add(lines,
      fmt::format(
          "{} sequences, {} pending   admitted {}/s  refused {}/s   http {}/s, {} open",
          now.sequences, now.pending,
          number(rate(static_cast<double>(before.admitted), static_cast<double>(now.admitted))),
          number(rate(static_cast<double>(before.refused), static_cast<double>(now.refused))),
          number(rate(before.http_requests, now.http_requests)), number(now.connections)));
  if (now.pools.empty()) add(lines, "no pool has registered");
  for (const TierSample::Pool& pool : now.pools) {
    add(lines, "");
    add_pool(lines, before, now, pool);
  }
  if (!now.pools.empty()) {
    add(lines, "");
    add(lines,
        "used: pages that sequences hold; promised: kept for tokens that they may still get");
  }
  return lines;
}

std::vector<std::string> fit_lines(const std::vector<std::string>& lines, std::size_t rows,
                                   std::size_t columns, std::size_t& first) {
  const std::size_t shown = std::min(lines.size(), std::max<std::size_t>(rows, 2) - 1);
  first = std::min(first, lines.size() - shown);
  std::vector<std::string> fitting(lines.begin() + static_cast<std::ptrdiff_t>(first),
                                   lines.begin() + static_cast<std::ptrdiff_t>(first + shown));
  fitting.push_back(shown == lines.size()
                        ? "q ends"
                        : fmt::format("lines {} to {} of {}; arrows and pages scroll, q ends",
                                      first + 1, first + shown, lines.size()));
  for (std::string& line : fitting) {
    if (line.size() > columns) line.resize(columns);
  }
  return fitting;
}

}  // namespace tributary
