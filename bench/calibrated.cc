// Interleaves calibrations with the measured work.
#include "bench/calibrated.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "deploy/app/bench/timing.h"
#include "kernels/host_memory.h"

namespace tributary::bench {
namespace {

// A tenth of a millisecond: much shorter than the measured work, much longer than waking threads.
constexpr std::size_t kCalibrationRounds = 50'000;
// Calibrations and reads at the start, and the share of their rate that a round must reach.
constexpr std::size_t kFirstCalibrations = 200;
constexpr std::size_t kFirstReads = 8;
constexpr double kUndisturbed = 0.95;
// Rounds for a median, and the seconds after which no round begins.
constexpr std::size_t kRounds = 5;
constexpr double kEnoughSeconds = 0.3;
constexpr double kMostSeconds = 6;
constexpr std::size_t kReadBytes = std::size_t{256} << 20;

/// The undisturbed rate. The maximum may be a moment of a higher clock.
double upper_quartile(std::vector<double> rates) {
  std::ranges::sort(rates);
  return rates[rates.size() * 3 / 4];
}

struct Samples {
  std::vector<double> seconds, peaks, busy;
};

}  // namespace

Machine::Machine(int threads, Clock clock, Product product)
    : pool_(threads),
      clock_(clock),
      product_(product),
      // Allocated as the backend allocates its own memory.
      memory_(make_host_buffer(kReadBytes * static_cast<std::size_t>(threads))) {
  std::vector<double> rates(kFirstCalibrations);
  for (double& rate : rates) rate = calibrate();
  peak_gflops_ = upper_quartile(std::move(rates));
  std::memset(memory_->data(), 1, memory_->bytes());
  for (std::size_t i = 0; i < kFirstReads; ++i) read_once();
}

void Machine::read_once() {
  const std::span<const std::uint64_t> data{memory_->as<std::uint64_t>(),
                                            memory_->bytes() / sizeof(std::uint64_t)};
  read_rates_.push_back(read_rate(pool_, data, clock_));
}

double Machine::read_gb_s() const {
  return upper_quartile(read_rates_);
}

double Machine::calibrate() {
  return product_rate(pool_, product_, kCalibrationRounds, clock_);
}

bool Machine::undisturbed() {
  return calibrate() >= kUndisturbed * peak_gflops_;
}

double Machine::seconds() const {
  const double now = seconds_now(clock_);
  return clock_ == Clock::kWall ? now : now / pool_.threads();
}

std::vector<Machine::Figure> Machine::measure(std::span<const std::function<void()>> works) {
  std::vector<Samples> samples(works.size());
  std::size_t kept = 0;
  std::size_t dropped = 0;
  read_once();
  for (const auto& work : works) work();
  const double begin = seconds_now(Clock::kWall);
  for (;;) {
    const double spent = seconds_now(Clock::kWall) - begin;
    if (spent > kMostSeconds || (kept >= kRounds && spent > kEnoughSeconds)) break;
    std::vector<Samples> round(works.size());
    bool disturbed = false;
    double before = calibrate();
    for (std::size_t i = 0; i < works.size(); ++i) {
      const double wall = seconds_now(Clock::kWall);
      const double processor = seconds_now(Clock::kProcessor);
      const double start = seconds();
      works[i]();
      const double took = seconds() - start;
      const double busy = (seconds_now(Clock::kProcessor) - processor) /
                          ((seconds_now(Clock::kWall) - wall) * threads());
      const double after = calibrate();
      disturbed = disturbed || std::min(before, after) < kUndisturbed * peak_gflops_;
      // A single thread that did not run all the time was preempted. Several threads may wait for
      // each other.
      disturbed = disturbed || (clock_ == Clock::kWall && threads() == 1 && busy < kUndisturbed);
      round[i] = {{took}, {(before + after) / 2}, {busy}};
      before = after;
    }
    ++(disturbed ? dropped : kept);
    if (disturbed) continue;
    for (std::size_t i = 0; i < works.size(); ++i) {
      samples[i].seconds.push_back(round[i].seconds[0]);
      samples[i].peaks.push_back(round[i].peaks[0]);
      samples[i].busy.push_back(round[i].busy[0]);
    }
  }
  std::vector<Figure> figures;
  figures.reserve(works.size());
  for (const Samples& part : samples) {
    figures.push_back({median(part.seconds), median(part.peaks), median(part.busy), kept, dropped});
    // The first calibrations may have been disturbed themselves.
    if (kept > 0) peak_gflops_ = std::max(peak_gflops_, figures.back().peak_gflops);
  }
  return figures;
}

}  // namespace tributary::bench
