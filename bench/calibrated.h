// Measurements with the machine's peak beside each: rounds whose calibration is low were disturbed
// and are dropped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "deploy/bench/dot_peak.h"
#include "kernels/cpu/thread_pool.h"

namespace tributary::bench {

/// Some threads of this machine: what they can do, and how long something takes.
class Machine {
 public:
  Machine(int threads, Clock clock);

  [[nodiscard]] int threads() const noexcept { return pool_.threads(); }
  /// GFLOP/s of dot products, undisturbed.
  [[nodiscard]] double peak_gflops() const noexcept { return peak_gflops_; }
  /// GB/s read, undisturbed: from what was seen until now, once more with every measurement.
  [[nodiscard]] double read_gb_s() const;
  /// Whether a calibration now reaches what the machine can do.
  [[nodiscard]] bool undisturbed();

  struct Figure {
    double seconds = 0;      // median of the rounds that count
    double peak_gflops = 0;  // median of the calibrations beside them
    /// Processor time of the process in a round by the time of all its threads: 1 is all busy.
    double busy = 0;
    std::size_t rounds = 0, dropped = 0;
  };
  /// Calls all `works` in turn, round after round, until enough rounds count or time is up; a
  /// figure each. No round counted: NaN.
  [[nodiscard]] std::vector<Figure> measure(std::span<const std::function<void()>> works);
  [[nodiscard]] Figure measure(const std::function<void()>& work) {
    return measure(std::span(&work, 1)).front();
  }

 private:
  double calibrate();
  void read_once();
  [[nodiscard]] double seconds() const;

  cpu::ThreadPool pool_;
  Clock clock_;
  double peak_gflops_ = 0;
  std::unique_ptr<Buffer> memory_;
  std::vector<double> read_rates_;
};

}  // namespace tributary::bench
