// A whole step of a pool: plan, queries out, attention, partial states back, combine; on 1, 2 and 4
// workers (threads of this process). One layer, DeepSeek's 512 + 64, bf16, a batch of sequences of
// one length. Rows and queries are generated before the step is timed, so that the time is the
// pool's own. With more workers than cores it shows the cost of the exchange, not a speed-up.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <cstdint>
#include <numeric>
#include <string>

#include "comm/local/run_ranks.h"
#include "deploy/app/bench/decode_case.h"
#include "deploy/app/bench/step_case.h"
#include "deploy/runtime/backends.h"
#include "deploy/runtime/processor_name.h"
#include "deploy/runtime/run_workers.h"

namespace tributary::bench {
namespace {

/// Rank 0's part: repeats the same step.
void lead(benchmark::State& state, StepCase& steps, int batch) {
  PhaseTimes phases{};
  RoundReport report;
  for ([[maybe_unused]] auto _ : state) {  // NOLINT(clang-analyzer-deadcode.DeadStores)
    report = steps.run();
    for (std::size_t p = 0; p < kPhases; ++p) phases[p] += report.phase_us[p];
  }
  const auto count = static_cast<double>(state.iterations());
  const auto rows = static_cast<double>(
      std::accumulate(report.worker_rows.begin(), report.worker_rows.end(), std::int64_t{0}));
  const double flop = rows * static_cast<double>(state.range(1)) * 2 * (2 * kRank + kRope);
  state.counters["GFLOP/s"] = benchmark::Counter(flop * count / 1e9, benchmark::Counter::kIsRate);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(batch) * count, benchmark::Counter::kIsRate);
  state.counters["KiB_exchanged"] = static_cast<double>(report.exchanged_bytes) / 1024;
  for (const Phase phase : {Phase::kPlan, Phase::kQueryExchange, Phase::kAttend,
                            Phase::kPartialExchange, Phase::kCombine}) {
    state.counters[std::string(phase_name(phase)) + "_us"] =
        phases[static_cast<std::size_t>(phase)] / count;
  }
  steps.stop();
}

void step(benchmark::State& state) {
  const int workers = static_cast<int>(state.range(0));
  const StepCaseConfig config{.attention = attention_shape(static_cast<int>(state.range(1))),
                              .batch = static_cast<int>(state.range(2)),
                              .context = state.range(3)};
  run_ranks(workers, [&](Communicator& communicator) {
    const auto backend = make_backend("cpu", threads_per_worker(communicator));
    StepCase steps(config, *backend, communicator);
    if (communicator.rank() == 0) {
      lead(state, steps, config.batch);
    } else {
      steps.follow();
    }
  });
}
BENCHMARK(step)
    ->ArgNames({"workers", "heads", "batch", "length"})
    ->ArgsProduct({{1, 2, 4}, {16, 128}, {1, 16}, {4096, 16384}})
    ->ArgsProduct({{1, 2, 8}, {16}, {1}, {64}})  // nothing exchanged: what a round itself takes
    ->Unit(benchmark::kMicrosecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  fmt::print("{}; kernels {}\n", tributary::processor_name(),
             tributary::make_backend("cpu", 1)->name());
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
