// The machine's limits, measured in the process that is judged by them: fused multiply-adds on the
// widest vectors, and bytes read from memory.
#pragma once

#include <string>

namespace tributary::bench {

struct MachinePeak {
  double gflops = 0;     // all threads together
  double read_gb_s = 0;  // 10^9 bytes, arrays far larger than the caches
  std::string instruction_set;
};

/// Runs both loops on `threads` threads at once, the best of several short runs (about 0.3 s).
[[nodiscard]] MachinePeak measure_peak(int threads);

/// The machine on which the numbers were measured: `AMD EPYC 9755, 2 of 2 CPUs usable`.
[[nodiscard]] std::string describe_machine();

}  // namespace tributary::bench
