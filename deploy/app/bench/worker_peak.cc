#include "deploy/app/bench/worker_peak.h"

#include <algorithm>
#include <cstddef>

#include "deploy/app/bench/dot_peak.h"
#include "deploy/app/bench/machine_peak.h"
#include "kernels/cpu/thread_pool.h"
#ifdef TRIBUTARY_HAS_CUDA
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device_peak.h"
#endif

namespace tributary::bench {
namespace {

WorkerPeak of_processor(int threads) {
  const MachinePeak machine = measure_peak(threads);
  WorkerPeak peak{.gflops = machine.gflops,
                  .arithmetic = "fp32 multiply-adds (" + machine.instruction_set + ")",
                  .gb_s = machine.read_gb_s};
  const Product product = best_product();
  if (product == Product::kMultiplyAdds) return peak;
  cpu::ThreadPool pool(threads);
  constexpr int kRuns = 40;
  constexpr std::size_t kRounds = 50'000;  // a hundred microseconds
  for (int run = 0; run < kRuns; ++run) {
    peak.gflops = std::max(peak.gflops, product_rate(pool, product, kRounds, Clock::kWall));
  }
  peak.arithmetic = product_name(product);
  return peak;
}

}  // namespace

WorkerPeak measure_worker_peak([[maybe_unused]] Backend& backend, int threads) {
#ifdef TRIBUTARY_HAS_CUDA
  if (cuda_stream(backend) != nullptr) {
    return {.gflops = device_product_rate(backend) * 1e-9,
            .arithmetic = "a bf16 product (cuBLASLt)",
            .gb_s = device_copy_bandwidth(backend) * 1e-9,
            .copies = true};
  }
#endif
  return of_processor(threads);
}

}  // namespace tributary::bench
