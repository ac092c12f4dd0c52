// Absorbed MLA decode attention of one sequence over its leaves on the CPU backend: heads x length
// x new tokens x threads, DeepSeek's 512 + 64, bf16 rows and queries, pages in random places.
// Reported: GFLOP/s, where one (row, head, token) is 2 (2 * 512 + 64) FLOP; GB/s of cache rows read
// once; GFLOP per second of processor time; the first two as a share of what this machine was
// measured to do at most, just before.
#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/backend.h"
#include "deploy/bench/machine_peak.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary::bench {
namespace {

constexpr int kRank = 512;
constexpr int kRope = 64;
constexpr int kLatent = kRank + kRope;
constexpr int kLeafTokens = 2048;

// Peaks by number of threads, measured when first asked for: before the loop that is judged.
const MachinePeak& peak_of(int threads) {
  static std::map<int, MachinePeak> peaks;
  const auto [entry, added] = peaks.try_emplace(threads);
  if (added) entry->second = measure_peak(threads);
  return entry->second;
}

std::vector<bf16> random_halves(std::size_t count, std::uint32_t seed) {
  // One normal number per element would dominate the set-up of the long cases: a table of them.
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::array<bf16, 4096> table;
  for (bf16& value : table) value = to_bf16(normal(random));
  std::vector<bf16> out(count);
  for (bf16& value : out) value = table[random() % table.size()];
  return out;
}

// One sequence in a cache, and a call that attends to all of it.
struct Sequence {
  Sequence(Backend& backend, int heads, int length, int tokens)
      : pages((length + kPageTokens - 1) / kPageTokens),
        cache(backend.make_cache({1, pages, kRank, kRope, DType::kBF16})),
        queries(random_halves(static_cast<std::size_t>(tokens) * heads * kLatent, 1)),
        block_table(static_cast<std::size_t>(pages)) {
    std::iota(block_table.begin(), block_table.end(), 0);
    std::shuffle(block_table.begin(), block_table.end(), std::mt19937(2));
    const std::vector<bf16> rows = random_halves(std::size_t{kPageTokens} * kLatent, 3);
    std::vector<AppendTask> appends(kPageTokens);
    for (int page = 0; page < pages; ++page) {
      for (int slot = 0; slot < kPageTokens; ++slot) {
        appends[static_cast<std::size_t>(slot)] = {0, page, slot, slot};
      }
      backend.append(*cache, {appends, layer, reinterpret_cast<const std::byte*>(rows.data()),
                              kLatent * sizeof(bf16)});
    }
    for (int begin = 0; begin < length; begin += kLeafTokens) {
      tasks.push_back({.item = 0,
                       .tokens = tokens,
                       .rows = std::min(kLeafTokens, length - begin),
                       .first_page = begin / kPageTokens,
                       .leaf_begin = begin,
                       .query_position = length - tokens,
                       .query = 0,
                       .state = static_cast<std::int64_t>(tasks.size()) * tokens});
    }
    const StateShape shape{heads, kRank};
    states.resize(tasks.size() * static_cast<std::size_t>(tokens) * shape.record_floats());
    args = {.tasks = tasks,
            .block_table = block_table,
            .item_layer = layer,
            .queries = reinterpret_cast<const std::byte*>(queries.data()),
            .query_stride_bytes = static_cast<std::size_t>(heads) * kLatent * sizeof(bf16),
            .query_dtype = DType::kBF16,
            .heads = heads,
            .softmax_scale = 0.0417F,
            .states = states.data()};
  }

  int pages;
  std::unique_ptr<Cache> cache;
  std::vector<bf16> queries;
  std::vector<std::int32_t> block_table;
  std::array<std::int32_t, 1> layer{0};
  std::vector<LeafTask> tasks;
  std::vector<float> states;
  AttendArgs args;
};

void attend(benchmark::State& state) {
  const int heads = static_cast<int>(state.range(0));
  const int length = static_cast<int>(state.range(1));
  const int tokens = static_cast<int>(state.range(2));
  const int threads = static_cast<int>(state.range(3));
  const auto backend = make_cpu_backend({.threads = threads, .instruction_set = ""});
  const Sequence sequence(*backend, heads, length, tokens);
  const MachinePeak& peak = peak_of(threads);
  backend->attend(*sequence.cache, sequence.args);
  const auto start = std::chrono::steady_clock::now();
  const std::clock_t cpu_start = std::clock();
  while (state.KeepRunning()) {
    backend->attend(*sequence.cache, sequence.args);
    benchmark::ClobberMemory();
  }
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double cpu_total = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  const double seconds = elapsed.count() / static_cast<double>(state.iterations());
  const double cpu_seconds = cpu_total / static_cast<double>(state.iterations());
  const double gflop = 2.0 * (2 * kRank + kRope) * heads * tokens * length / 1e9;
  const double gflops = gflop / seconds;
  const double gb_s = static_cast<double>(length) * kLatent * sizeof(bf16) / seconds / 1e9;
  state.counters["GFLOP/s"] = gflops;
  // Of the processor time of all threads: what a core does that nobody else wants.
  state.counters["per_core"] = gflop / cpu_seconds;
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
             tributary::bench::describe_machine(), tributary::make_cpu_backend({})->name(),
             peak.gflops, peak.instruction_set, peak.read_gb_s);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
