// The loop is in assembly: a compiler would see through sixteen equal chains.
#include "deploy/app/bench/dot_peak.h"

#include <algorithm>
#include <atomic>
#include <ctime>
#include <thread>
#include <utility>
#include <vector>

#include "deploy/app/bench/machine_peak.h"
#include "deploy/app/bench/timing.h"
#include "kernels/cpu/tiles.h"

namespace tributary::bench {
namespace {

constexpr double kChains = 16;  // latency 6 x 2 a cycle need 12
// A round of tiles takes 16 times as long as one of 16 dot products at 2 a cycle.
constexpr std::size_t kRoundsPerTiles = 16;

#if defined(__x86_64__)
constexpr double kDotFlop = 64;  // of one instruction: 16 lanes x 2 multiply-adds
constexpr double kMultiplyAddFlop = 32;

// 16 chains of `rounds` instructions on zeros.
#define TRIBUTARY_EACH_CHAIN(text) \
  ".irp i,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n\t" text "\n\t.endr\n\t"
#define TRIBUTARY_CHAINS(instruction, vector, rounds) \
  asm volatile(                                                                                 \
      "vpxord %%zmm16, %%zmm16, %%zmm16\n\t"                                                    \
      "vpxord %%zmm17, %%zmm17, %%zmm17\n\t"                                                    \
      TRIBUTARY_EACH_CHAIN("vmovdqa64 %%zmm16, %%zmm\\i")                                       \
      "1:\n\t"                                                                                  \
      TRIBUTARY_EACH_CHAIN(instruction " %%" vector "16, %%" vector "17, %%" vector "\\i")      \
      "dec %0\n\t"                                                                              \
      "jnz 1b\n\t"                                                                              \
      : "+r"(rounds)                                                                            \
      :                                                                                         \
      : "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9",   \
        "zmm10", "zmm11", "zmm12", "zmm13", "zmm14", "zmm15", "zmm16", "zmm17")

[[gnu::target("avx512f,avx512bf16")]] void dot_loop(std::size_t rounds) {
  TRIBUTARY_CHAINS("vdpbf16ps", "zmm", rounds);
}
[[gnu::target("avx512f")]] void multiply_add_loop(std::size_t rounds) {
  TRIBUTARY_CHAINS("vfmadd231ps", "zmm", rounds);
}
[[gnu::target("avx512f,avx512vl")]] void half_multiply_add_loop(std::size_t rounds) {
  TRIBUTARY_CHAINS("vfmadd231ps", "ymm", rounds);
}
bool has_dot_products() {
  return __builtin_cpu_supports("avx512bf16") != 0;
}
bool has_wide_vectors() {
  return __builtin_cpu_supports("avx512f") != 0;
}
#endif

/// Seconds that work(thread) takes on all threads at once.
template <typename Work>
double together(cpu::ThreadPool& pool, Clock clock, const Work& work) {
  const int threads = pool.threads();
  std::atomic<int> inside{0};
  std::atomic<double> start{0};
  pool.for_each(static_cast<std::size_t>(threads), [&](std::size_t unit, int) {
    // All threads begin together, however long they took to wake up.
    if (inside.fetch_add(1) + 1 == threads) start.store(seconds_now(clock));
    while (start.load() == 0) std::this_thread::yield();
    work(unit);
  });
  const double seconds = seconds_now(clock) - start.load();
  return clock == Clock::kWall ? seconds : seconds / threads;
}

}  // namespace

Product best_product() {
  static const Product best = [] {
    if (cpu::tiles_usable()) return Product::kTiles;
#if defined(__x86_64__)
    if (!has_dot_products()) return Product::kMultiplyAdds;
    // The best of a few short runs: some are disturbed.
    constexpr int kRuns = 20;
    constexpr std::size_t kRounds = 50'000;
    cpu::ThreadPool alone(1);
    double dots = 0;
    double multiply_adds = 0;
    for (int run = 0; run < kRuns; ++run) {
      dots = std::max(dots, product_rate(alone, Product::kDotProducts, kRounds, Clock::kWall));
      multiply_adds = std::max(multiply_adds,
                               product_rate(alone, Product::kMultiplyAdds, kRounds, Clock::kWall));
    }
    if (dots > multiply_adds) return Product::kDotProducts;
#endif
    return Product::kMultiplyAdds;
  }();
  return best;
}

Product product_of_set(std::string_view set) {
  if (set.empty()) return best_product();
  if (set == "AMX_BF16") return Product::kTiles;
  if (set.starts_with("AVX3_BF16")) return Product::kDotProducts;
  return set.starts_with("AVX3") ? Product::kMultiplyAdds : Product::kHalfMultiplyAdds;
}

std::string_view product_name(Product product) noexcept {
  switch (product) {
    case Product::kTiles:
      return "bf16 tiles";
    case Product::kDotProducts:
      return "bf16 dot products";
    case Product::kHalfMultiplyAdds:
      return "fp32 multiply-adds of 256 bits";
    case Product::kMultiplyAdds:
      break;
  }
  return "fp32 multiply-adds";
}

double seconds_now(Clock clock) {
  timespec time{};
  clock_gettime(clock == Clock::kWall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

double product_rate(cpu::ThreadPool& pool, Product product, std::size_t rounds, Clock clock) {
  const auto threads = static_cast<double>(pool.threads());
  if (product == Product::kTiles) {
    const std::size_t tiles = std::max<std::size_t>(1, rounds / kRoundsPerTiles);
    const double seconds = together(pool, clock, [&](std::size_t) { cpu::multiply_tiles(tiles); });
    return static_cast<double>(tiles * cpu::kTileProducts * cpu::kTileProductFlop) * threads /
           seconds / 1e9;
  }
#if defined(__x86_64__)
  if (has_wide_vectors()) {
    auto* loop = half_multiply_add_loop;
    double flop = kMultiplyAddFlop / 2;
    if (product == Product::kDotProducts) {
      loop = dot_loop;
      flop = kDotFlop;
    } else if (product == Product::kMultiplyAdds) {
      loop = multiply_add_loop;
      flop = kMultiplyAddFlop;
    }
    const double seconds = together(pool, clock, [&](std::size_t) { loop(rounds); });
    return kChains * flop * static_cast<double>(rounds) * threads / seconds / 1e9;
  }
#endif
  return measure_peak(pool.threads()).gflops;
}

double read_rate(cpu::ThreadPool& pool, std::span<const std::uint64_t> data, Clock clock) {
  constexpr std::size_t kParts = 15;
  const auto threads = static_cast<std::size_t>(pool.threads());
  const std::size_t share = data.size() / kParts / threads;
  std::vector<std::uint64_t> sinks(threads * 64);
  std::vector<double> rates;
  for (std::size_t part = 0; part < kParts; ++part) {
    const double seconds = together(pool, clock, [&](std::size_t thread) {
      const std::uint64_t* from = data.data() + (part * threads + thread) * share;
      std::uint64_t all = 0;
      for (std::size_t i = 0; i < share; ++i) all |= from[i];
      sinks[thread * 64] |= all;
    });
    rates.push_back(static_cast<double>(share * threads * sizeof(std::uint64_t)) / seconds / 1e9);
  }
  return median(std::move(rates));
}

}  // namespace tributary::bench
