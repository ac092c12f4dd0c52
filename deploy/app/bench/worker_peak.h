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

/// Of a GPU: copies within its memory, a large product. Else of `threads` threads, whatever the
/// backend: reads, and the arithmetic that attention in bf16 is made of. About a second. Throws
/// what a GPU fails with.
[[nodiscard]] WorkerPeak measure_worker_peak(Backend& backend, int threads);

}  // namespace tributary::bench
