// Measurements with the machine's peak measured beside each. Rounds with a low calibration were
// disturbed and are dropped.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "deploy/app/bench/dot_peak.h"
#include "kernels/cpu/thread_pool.h"

namespace tributary::bench {

/// Measures the peak of some threads of this machine, and how long something takes.
class Machine {
 public:
  /// `product`: the yardstick of arithmetic.
  Machine(int threads, Clock clock, Product product);

  [[nodiscard]] Product product() const noexcept { return product_; }
  [[nodiscard]] int threads() const noexcept { return pool_.threads(); }
  /// GFLOP/s of product(), undisturbed.
  [[nodiscard]] double peak_gflops() const noexcept { return peak_gflops_; }
  /// GB/s read, undisturbed, from all reads so far. Every measure() adds one read.
  [[nodiscard]] double read_gb_s() const;
  /// Whether a calibration reaches the machine's peak now.
  [[nodiscard]] bool undisturbed();

  struct Figure {
    double seconds = 0;      // median of the rounds that count
    double peak_gflops = 0;  // median of the calibrations in these rounds
    /// Processor time of a round over the time of all its threads; 1: all were busy.
    double busy = 0;
    std::size_t rounds = 0, dropped = 0;
  };
  /// Calls all `works` in turn, round after round, until enough rounds count or time is up. Returns
  /// one result each; NaN if no round counted.
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
  Product product_;
  double peak_gflops_ = 0;
  std::unique_ptr<Buffer> memory_;
  std::vector<double> read_rates_;
};

}  // namespace tributary::bench
