// `tributary bench`: measurements of an operator's own machines. Kernels, exchange and steps beside
// the hardware's limits, and the constants of the cost model.
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
/// Runs on every rank; rank 0 gets the report, the others an empty one. Throws the errors of
/// opening the device (open_device) and of measuring on it.
[[nodiscard]] BenchReport run_bench(const BenchOptions& options, Communicator& communicator);
/// The same on `device`, in place of options.backend; on a processor with `threads` threads.
[[nodiscard]] BenchReport run_bench(const BenchOptions& options, const WorkerDevice& device,
                                    int threads, Communicator& communicator);

}  // namespace tributary
