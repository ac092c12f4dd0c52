// A worker's limits, measured by the worker itself: by its threads, or by its GPU.
#pragma once

#include <string>

#include "core/interface/backend.h"

namespace tributary::bench {

struct WorkerPeak {
  double gflops = 0;
  std::string arithmetic;  // what they were of
  double gb_s = 0;         // 10^9 bytes: read from memory, or read and written where `copies`
  bool copies = false;
};

/// On a GPU: copies within its memory, and a large product. Otherwise, on `threads` threads,
/// whatever the backend: reads, and the arithmetic of attention in bf16. Takes about a second.
/// Throws the GPU's failure.
[[nodiscard]] WorkerPeak measure_worker_peak(Backend& backend, int threads);

}  // namespace tributary::bench
