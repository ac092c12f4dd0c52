// `tributary bench`: what an operator's own machines do. Kernels, exchange and steps beside what
// the hardware does, and the constants of the cost model.
#pragma once

#include <string>

#include "core/interface/communicator.h"
#include "deploy/bench/bench_options.h"

namespace tributary {

struct BenchReport {
  std::string text;
  std::string json;
};
/// Runs on every rank; rank 0 gets the report, the others an empty one.
[[nodiscard]] BenchReport run_bench(const BenchOptions& options, Communicator& communicator);

}  // namespace tributary
