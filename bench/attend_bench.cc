// Absorbed MLA decode attention of one sequence over its leaves on the CPU backend, over heads,
// length, new tokens and threads: DeepSeek's 512 + 64, bf16 rows and queries, pages at random
// places. Reports GFLOP/s, where one (row, head, token) is 2 (2 * 512 + 64) FLOP; GB/s of cache
// rows, each read once; GFLOP per second of processor time; and the first two as a share of this
// machine's peaks, measured just before.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <chrono>
#include <ctime>
#include <map>
#include <span>

#include "deploy/app/bench/decode_case.h"
#include "deploy/app/bench/machine_peak.h"
#include "deploy/runtime/processor_name.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary::bench {
namespace {

// Peaks by number of threads, measured at first use, before the loop that is compared with them.
const MachinePeak& peak_of(int threads) {
  static std::map<int, MachinePeak> peaks;
  const auto [entry, added] = peaks.try_emplace(threads);
  if (added) entry->second = measure_peak(threads);
  return entry->second;
}

void attend(benchmark::State& state) {
  const int heads = static_cast<int>(state.range(0));
  const int length = static_cast<int>(state.range(1));
  const int tokens = static_cast<int>(state.range(2));
  const int threads = static_cast<int>(state.range(3));
  const auto backend = make_cpu_backend({.threads = threads, .instruction_set = ""});
  DecodeCase decode(*backend, heads, tokens, std::span(&length, 1));
  const MachinePeak& peak = peak_of(threads);
  decode.attend();
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  while (state.KeepRunning()) {
    decode.attend();
    benchmark::ClobberMemory();
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double cpu_total = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  const double seconds = elapsed.count() / static_cast<double>(state.iterations());
  const double cpu_seconds = cpu_total / static_cast<double>(state.iterations());
  const double gflops = decode.gflop() / seconds;
  const double gb_s = decode.gigabytes() / seconds;
  state.counters["GFLOP/s"] = gflops;
  // Per processor time of all threads: the rate of an undisturbed core.
  state.counters["per_core"] = decode.gflop() / cpu_seconds;
  state.counters["peak%"] = 100 * gflops / peak.gflops;
  state.counters["GB/s"] = gb_s;
  state.counters["read%"] = 100 * gb_s / peak.read_gb_s;
}
BENCHMARK(attend)
    ->ArgNames({"heads", "length", "s_q", "threads"})
    ->ArgsProduct({{16, 64, 128}, {1 << 10, 8 << 10, 64 << 10}, {1, 2}, {1, 2}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime();

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  using tributary::bench::measure_peak;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const auto peak = measure_peak(1);
  fmt::print("{}; kernels {}; one thread at most {:.0f} GFLOP/s fp32 ({}), {:.1f} GB/s read\n",
             tributary::processor_name(), tributary::make_cpu_backend({})->name(), peak.gflops,
             peak.instruction_set, peak.read_gb_s);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
