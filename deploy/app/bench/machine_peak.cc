// Two loops that contain only what they measure.
#include "deploy/app/bench/machine_peak.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "deploy/app/bench/machine_peak.cc"
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tributary::bench::HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

// Returns the FLOP done. Twelve independent chains are more than latency times throughput of any
// current core.
double multiply_add_loop(std::size_t rounds, float* sink) {
  const hn::ScalableTag<float> d;
  const auto a = hn::Set(d, 0.999F);
  const auto b = hn::Set(d, 0.001F);
  // Equal chains would be one chain to a compiler.
  auto x0 = hn::Iota(d, 0), x1 = hn::Iota(d, 1), x2 = hn::Iota(d, 2), x3 = hn::Iota(d, 3);
  auto x4 = hn::Iota(d, 4), x5 = hn::Iota(d, 5), x6 = hn::Iota(d, 6), x7 = hn::Iota(d, 7);
  auto x8 = hn::Iota(d, 8), x9 = hn::Iota(d, 9), xa = hn::Iota(d, 10), xb = hn::Iota(d, 11);
  for (std::size_t i = 0; i < rounds; ++i) {
    x0 = hn::MulAdd(x0, a, b);
    x1 = hn::MulAdd(x1, a, b);
    x2 = hn::MulAdd(x2, a, b);
    x3 = hn::MulAdd(x3, a, b);
    x4 = hn::MulAdd(x4, a, b);
    x5 = hn::MulAdd(x5, a, b);
    x6 = hn::MulAdd(x6, a, b);
    x7 = hn::MulAdd(x7, a, b);
    x8 = hn::MulAdd(x8, a, b);
    x9 = hn::MulAdd(x9, a, b);
    xa = hn::MulAdd(xa, a, b);
    xb = hn::MulAdd(xb, a, b);
  }
  const auto low = hn::Add(hn::Add(hn::Add(x0, x1), hn::Add(x2, x3)), hn::Add(x4, xa));
  const auto high = hn::Add(hn::Add(hn::Add(x5, x6), hn::Add(x7, x8)), hn::Add(x9, xb));
  *sink = hn::GetLane(hn::SumOfLanes(d, hn::Add(low, high)));
  return static_cast<double>(rounds) * 12 * 2 * static_cast<double>(hn::Lanes(d));
}

double read_loop(const float* data, std::size_t count, float* sink) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  auto x0 = hn::Zero(d), x1 = x0, x2 = x0, x3 = x0;
  for (std::size_t i = 0; i + 4 * lanes <= count; i += 4 * lanes) {
    x0 = hn::Max(x0, hn::LoadU(d, data + i));
    x1 = hn::Max(x1, hn::LoadU(d, data + i + lanes));
    x2 = hn::Max(x2, hn::LoadU(d, data + i + 2 * lanes));
    x3 = hn::Max(x3, hn::LoadU(d, data + i + 3 * lanes));
  }
  *sink = hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(x0, x1), hn::Max(x2, x3))));
  return static_cast<double>(count * sizeof(float));
}

const char* target_name() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace
}  // namespace tributary::bench::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::bench {
namespace {

HWY_EXPORT(multiply_add_loop);
HWY_EXPORT(read_loop);
HWY_EXPORT(target_name);

// A millisecond or so each: on a shared machine some of many short runs go undisturbed.
constexpr int kArithmeticRuns = 40;
constexpr int kReadRuns = 5;
constexpr std::size_t kRounds = 1'000'000;
// 256 MiB a thread: several times the last-level cache that a thread can have.
constexpr std::size_t kReadFloats = std::size_t{64} << 20;

// The best rate, in units of 10^9 a second, at which `threads` threads together do what
// `work(thread)` counts, over several runs.
double best_rate(int threads, int runs, const std::function<double(int)>& work) {
  double best = 0;
  for (int run = 0; run < runs; ++run) {
    std::vector<double> done(static_cast<std::size_t>(threads));
    std::vector<std::thread> workers;
    std::atomic<int> ready{0};
    const auto body = [&](int thread) {
      ready.fetch_add(1);
      while (ready.load() < threads) std::this_thread::yield();
      done[static_cast<std::size_t>(thread)] = work(thread);
    };
    const auto start = std::chrono::steady_clock::now();
    for (int thread = 1; thread < threads; ++thread) workers.emplace_back(body, thread);
    body(0);
    for (std::thread& worker : workers) worker.join();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    double total = 0;
    for (const double part : done) total += part;
    best = std::max(best, total / seconds.count() / 1e9);
  }
  return best;
}

}  // namespace

MachinePeak measure_peak(int threads) {
  MachinePeak peak;
  peak.instruction_set = HWY_DYNAMIC_DISPATCH(target_name)();
  std::vector<float> sinks(static_cast<std::size_t>(threads) * 64);
  const auto sink = [&](int thread) { return &sinks[static_cast<std::size_t>(thread) * 64]; };
  peak.gflops = best_rate(threads, kArithmeticRuns, [&](int thread) {
    return HWY_DYNAMIC_DISPATCH(multiply_add_loop)(kRounds, sink(thread));
  });
  const std::vector<float> data(kReadFloats * static_cast<std::size_t>(threads), 1.0F);
  peak.read_gb_s = best_rate(threads, kReadRuns, [&](int thread) {
    const float* own = data.data() + static_cast<std::size_t>(thread) * kReadFloats;
    return HWY_DYNAMIC_DISPATCH(read_loop)(own, kReadFloats, sink(thread));
  });
  return peak;
}

}  // namespace tributary::bench
#endif  // HWY_ONCE
