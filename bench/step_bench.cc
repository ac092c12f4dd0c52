// A whole step of a pool: plan, queries out, attention, partial states back, combine; over 1, 2 and
// 4 workers (threads of this process). One layer, DeepSeek's 512 + 64, bf16, a batch of sequences
// of one length; rows and queries come from the generator before the step is timed, so that the
// figure is the pool's own. On more workers than cores the exchange's cost shows, not a speed-up.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "bench/machine_peak.h"
#include "bench/prepared_client.h"
#include "comm/local/run_ranks.h"
#include "core/pool/sequencer.h"
#include "core/pool/worker.h"
#include "deploy/runtime/backends.h"
#include "deploy/runtime/launch.h"

namespace tributary::bench {
namespace {

constexpr int kLeafTokens = 2048;

AttentionShape shape_of(int heads) {
  return {.heads = heads,
          .kv_lora_rank = 512,
          .qk_rope_head_dim = 64,
          .row_dtype = DType::kBF16,
          .query_dtype = DType::kBF16,
          .softmax_scale = 0.135F};
}

/// Rank 0's part: the same step again and again; nothing of it is committed.
void lead(benchmark::State& state, Worker& worker, Sequencer& sequencer, int batch, int length) {
  std::vector<Sequencer::StepRequest> step;
  for (int i = 0; i < batch; ++i) {
    const auto id = sequencer.admit({.tag = i,
                                     .prompt_tokens = length - 1,
                                     .max_new_tokens = 1,
                                     .spread = SpreadPolicy::kAuto});
    step.push_back({id.value(), 1});
  }
  worker.lead(sequencer.take_order()).status.throw_if_error();  // fills
  PhaseTimes phases{};
  RoundReport report;
  for ([[maybe_unused]] auto _ : state) {  // NOLINT(clang-analyzer-deadcode.DeadStores)
    sequencer.begin_step(step);
    report = worker.lead(sequencer.take_order());
    report.status.throw_if_error();
    sequencer.abort_step();
    for (std::size_t p = 0; p < kPhases; ++p) phases[p] += report.phase_us[p];
  }
  const auto steps = static_cast<double>(state.iterations());
  const auto rows = static_cast<double>(
      std::accumulate(report.worker_rows.begin(), report.worker_rows.end(), std::int64_t{0}));
  const double flop = rows * static_cast<double>(state.range(1)) * 2 * (2 * 512 + 64);
  state.counters["GFLOP/s"] = benchmark::Counter(flop * steps / 1e9, benchmark::Counter::kIsRate);
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(batch) * steps, benchmark::Counter::kIsRate);
  state.counters["KiB_exchanged"] = static_cast<double>(report.exchanged_bytes) / 1024;
  for (const Phase phase : {Phase::kPlan, Phase::kQueryExchange, Phase::kAttend,
                            Phase::kPartialExchange, Phase::kCombine}) {
    state.counters[std::string(phase_name(phase)) + "_us"] =
        phases[static_cast<std::size_t>(phase)] / steps;
  }
  Order last = sequencer.take_order();
  last.stop = true;
  worker.lead(last).status.throw_if_error();
}

void step(benchmark::State& state) {
  const int workers = static_cast<int>(state.range(0));
  const int heads = static_cast<int>(state.range(1));
  const int batch = static_cast<int>(state.range(2));
  const int length = static_cast<int>(state.range(3));
  const AttentionShape shape = shape_of(heads);
  const std::int64_t leaf_pages = ceil_div(length, kPageTokens);
  const auto pages = static_cast<std::int32_t>(batch * leaf_pages);
  run_ranks(workers, [&](Communicator& communicator) {
    const auto backend = make_backend("cpu", threads_per_worker(communicator));
    PreparedClient client(shape, *backend);
    Worker worker({.attention = shape,
                   .layers = 1,
                   .pages = pages,
                   .leaf_tokens = kLeafTokens,
                   .exchange = Exchange::kAuto},
                  *backend, communicator, client);
    if (communicator.rank() != 0) {
      for (bool stop = false; !stop;) {
        const RoundReport round = worker.follow();
        round.status.throw_if_error();
        stop = round.stop;
      }
      return;
    }
    Sequencer sequencer({.placement = {.workers = workers,
                                       .leaf_tokens = kLeafTokens,
                                       .costs = {},
                                       .extent_share = PlacementConfig{}.extent_share},
                         .pages_per_worker = pages,
                         .incarnation = 1});
    lead(state, worker, sequencer, batch, length);
  });
}
BENCHMARK(step)
    ->ArgNames({"workers", "heads", "batch", "length"})
    ->ArgsProduct({{1, 2, 4}, {16, 128}, {1, 16}, {4096, 16384}})
    ->Unit(benchmark::kMicrosecond)
    ->MeasureProcessCPUTime()
    ->UseRealTime();

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  fmt::print("{}; kernels {}\n", tributary::bench::describe_machine(),
             tributary::make_backend("cpu", 1)->name());
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
