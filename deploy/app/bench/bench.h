// `tributary bench`: what an operator's own machines do. Kernels, exchange and steps beside what
// the hardware does, and the constants of the cost model.
#pragma once

#include <string>

#include "core/interface/communicator.h"
#include "deploy/app/bench/bench_options.h"
#include "deploy/runtime/device.h"

namespace tributary {

struct BenchReport {
  std::string text;
  std::string json;
};
/// Runs on every rank; rank 0 gets the report, the others an empty one. Throws what opening the
/// device (open_device) and measuring on it fail with.
[[nodiscard]] BenchReport run_bench(const BenchOptions& options, Communicator& communicator);
/// The same on `device`, in place of options.backend: with `threads` threads, where it is the
/// processor.
[[nodiscard]] BenchReport run_bench(const BenchOptions& options, const WorkerDevice& device,
                                    int threads, Communicator& communicator);

}  // namespace tributary
