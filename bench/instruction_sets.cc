#include "bench/instruction_sets.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "deploy/app/bench/decode_case.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary::bench {
namespace {

// A set is slower than another only beyond the noise of a measurement.
constexpr double kNoise = 0.97;

struct Batch {
  int sequences = 1;
  int length = 0;  // tokens of each
};
constexpr std::array kBatches{Batch{1, 4096}, Batch{4, 8192}, Batch{1, 32768}, Batch{1, 131072}};

/// The sets that a table may choose between.
std::vector<std::string_view> candidates() {
  std::vector<std::string_view> names;
  for (const std::string_view name : cpu_instruction_sets()) {
    if (name == "AMX_BF16" || name.starts_with("AVX")) names.push_back(name);
  }
  return names;
}

}  // namespace

void compare_instruction_sets(Machine& machine, std::span<const int> heads_counts) {
  const std::vector<std::string_view> names = candidates();
  if (names.size() < 2) return;
  std::vector<std::unique_ptr<Backend>> backends;
  fmt::print("\nInstruction sets in turn, {} thread(s), GFLOP/s; the table has {} ({}):\n{:24}",
             machine.threads(), names.front(), cpu_instruction_set_reason(), "");
  for (const std::string_view name : names) {
    backends.push_back(
        make_cpu_backend({.threads = machine.threads(), .instruction_set = std::string(name)}));
    fmt::print(" {:>14}", name);
  }
  fmt::print("   peak ({}), read GB/s\n", product_name(machine.product()));
  for (const int heads : heads_counts) {
    for (const Batch& batch : kBatches) {
      const std::vector<int> lengths(static_cast<std::size_t>(batch.sequences), batch.length);
      std::vector<std::unique_ptr<DecodeCase>> cases;
      std::vector<std::function<void()>> works;
      for (const auto& backend : backends) {
        DecodeCase& decode =
            *cases.emplace_back(std::make_unique<DecodeCase>(*backend, heads, 1, lengths));
        works.emplace_back([&decode] {
          decode.attend();
          decode.merge();
        });
      }
      const std::vector<Machine::Figure> figures = machine.measure(works);
      fmt::print("{:3} heads, {} x {:6} rows", heads, batch.sequences, batch.length);
      if (figures.front().rounds == 0) {
        fmt::print(": no round undisturbed of {}\n", figures.front().dropped);
        continue;
      }
      double best = 0;
      for (const Machine::Figure& figure : figures) {
        const double rate = cases.front()->gflop() / figure.seconds;
        best = std::max(best, rate);
        fmt::print(" {:14.0f}", rate);
      }
      const double own = cases.front()->gflop() / figures.front().seconds;
      fmt::print("   {:2.0f}% of {:.0f}, {:.1f}{}\n", 100 * own / figures.front().peak_gflops,
                 figures.front().peak_gflops, cases.front()->gigabytes() / figures.front().seconds,
                 own < kNoise * best ? "  NOT the fastest" : "");
    }
  }
}

}  // namespace tributary::bench
