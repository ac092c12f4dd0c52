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

}  // namespace tributary::bench
