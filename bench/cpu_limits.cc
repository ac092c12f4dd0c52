// Decode attention of the CPU backend, and a whole step of an MLA layer, against what the machine
// was measured to do at most, in the same process and beside each measurement. `cpu_limits --help`
// lists the flags; bench/cpu_limits.sh builds and runs it.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "bench/calibrated.h"
#include "bench/decode_case.h"
#include "bench/machine_peak.h"
#include "core/workload/trace.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary::bench {
namespace {

struct Options {
  bool processor_time = false;
  std::vector<int> threads = {1, 2};  // each 1 to 64
  std::vector<int> heads = {128, 64, 16, 4, 1};
  std::vector<int> lengths = {4096, 32768, 131072};
  std::string trace;            // empty: lengths like a chat service's, built in
  std::string instruction_set;  // empty: the best
};

/// One figure against its limit: the lower of arithmetic at full rate and rows read at full rate.
void print_figure(const std::string& what, const DecodeCase& decode, const Machine& machine,
                  const Machine::Figure& figure) {
  if (figure.rounds == 0) {
    fmt::print("{:42} no round undisturbed of {}\n", what, figure.dropped);
    return;
  }
  const double rate = decode.gflop() / figure.seconds;
  const double read = decode.gigabytes() / figure.seconds;
  const double by_reading = decode.gflop() / decode.gigabytes() * machine.read_gb_s();
  fmt::print(
      "{:42} {:9.0f} us {:6.0f} GFLOP/s {:3.0f}% of {:4.0f} {:6.1f} GB/s {:3.0f}% of {:4.1f}"
      "  limit {:3.0f}%  ({} rounds, {} dropped)\n",
      what, figure.seconds * 1e6, rate, 100 * rate / figure.peak_gflops, figure.peak_gflops, read,
      100 * read / machine.read_gb_s(), machine.read_gb_s(),
      100 * rate / std::min(figure.peak_gflops, by_reading), figure.rounds, figure.dropped);
  (void)std::fflush(stdout);
}

void heads_and_lengths(Machine& machine, Backend& backend, const Options& options) {
  fmt::print("\nOne sequence, {} thread(s); query packing and lse included:\n", machine.threads());
  for (const int heads : options.heads) {
    for (const int length : options.lengths) {
      // More tokens a step at one length: what changes is the number of query rows.
      const bool some = length == 32768 || options.lengths.size() == 1;
      for (const int tokens : some ? std::vector{1, 2, 4} : std::vector{1}) {
        DecodeCase decode(backend, heads, tokens, std::array{length});
        print_figure(fmt::format("{:3} heads, {:6} rows, s_q {}", heads, length, tokens), decode,
                     machine, machine.measure([&] { decode.attend(); }));
      }
    }
  }
}

void mixed_batch(Machine& machine, Backend& backend, const Options& options) {
  constexpr std::size_t kBatch = 64;
  const auto requests =
      options.trace.empty() ? built_in_workload(kBatch, 1) : read_trace(options.trace, kBatch);
  std::vector<int> lengths;
  for (const TraceRequest& request : requests) {
    lengths.push_back(static_cast<int>(std::min<std::int64_t>(request.input_length, 1 << 17)));
  }
  fmt::print("\n{} sequences of mixed lengths ({}), {} thread(s):\n", lengths.size(),
             options.trace.empty() ? "built in" : options.trace, machine.threads());
  for (const int heads : {128, 16}) {
    DecodeCase decode(backend, heads, 1, lengths);
    const auto figure = machine.measure([&] { decode.attend(); });
    print_figure(fmt::format("{:3} heads", heads), decode, machine, figure);
    if (!options.processor_time && figure.rounds > 0)
      fmt::print("{:42} threads busy {:.1f}%\n", "", 100 * figure.busy);
  }
}

void canonical_order(Machine& machine, Backend& backend) {
  fmt::print(
      "\nLeaf by leaf and merged, against one running softmax over the whole sequence, {} "
      "thread(s):\n",
      machine.threads());
  for (const int heads : {128, 16}) {
    constexpr int kLength = 32768;
    DecodeCase leaves(backend, heads, 1, std::array{kLength});
    DecodeCase whole(backend, heads, 1, std::array{kLength}, kLength);
    const std::array<std::function<void()>, 2> works{[&] {
                                                       leaves.attend();
                                                       leaves.merge();
                                                     },
                                                     [&] { whole.attend(); }};
    const auto figures = machine.measure(works);
    fmt::print(
        "{:3} heads, {} rows: {:.0f} us, {:.0f} us whole: {:+.1f}%  ({} rounds, {} "
        "dropped)\n",
        heads, kLength, figures[0].seconds * 1e6, figures[1].seconds * 1e6,
        100 * (figures[0].seconds / figures[1].seconds - 1), figures[0].rounds, figures[0].dropped);
  }
}

/// The fp32 kernels, against the multiply-adds of AVX-512 and those of vectors half as long.
void other_instruction_sets(Machine& machine) {
  const double peak = measure_peak(1).gflops;
  const auto sets = cpu_instruction_sets();
  fmt::print("\nfp32 kernels, 128 heads, 8192 rows, 1 thread; at most {:.0f} GFLOP/s of fp32:\n",
             peak);
  for (const std::string_view set : sets) {
    if (set != "AVX3" && set != "AVX2") continue;
    const auto backend = make_cpu_backend({.threads = 1, .instruction_set = std::string(set)});
    DecodeCase decode(*backend, 128, 1, std::array{8192});
    const auto figure = machine.measure([&] { decode.attend(); });
    const double own = set == "AVX2" && sets.front() != "AVX2" ? peak / 2 : peak;
    const double rate = decode.gflop() / figure.seconds;
    fmt::print("{:5} {:6.0f} GFLOP/s, {:3.0f}% of {:.0f}  ({} rounds, {} dropped)\n", set, rate,
               100 * rate / own, own, figure.rounds, figure.dropped);
  }
}

int run(const Options& options) {
  const Clock clock = options.processor_time ? Clock::kProcessor : Clock::kWall;
  const auto make = [&](int threads) {
    return make_cpu_backend({.threads = threads, .instruction_set = options.instruction_set});
  };
  fmt::print("{}; kernels {}; {} time\n", describe_machine(), make(1)->name(),
             clock == Clock::kWall ? "wall" : "processor");
  for (const int threads : options.threads) {
    Machine machine(threads, clock);
    const auto backend = make(threads);
    fmt::print("\n{} thread(s): at most {:.0f} GFLOP/s of {}, {:.1f} GB/s read\n", threads,
               machine.peak_gflops(), has_dot_products() ? "bf16 dot products" : "fp32",
               machine.read_gb_s());
    heads_and_lengths(machine, *backend, options);
    mixed_batch(machine, *backend, options);
    canonical_order(machine, *backend);
    if (threads == 1) other_instruction_sets(machine);
  }
  return 0;
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  tributary::bench::Options options;
  CLI::App app("Decode attention of the CPU backend against the limits of the machine.");
  app.add_flag("--processor-time", options.processor_time,
               "judge by the processor time of the process: for a machine that others use as well");
  app.add_option("--threads", options.threads, "numbers of threads to measure with")
      ->check(CLI::Range(1, 64))
      ->delimiter(',');
  app.add_option("--heads", options.heads, "heads of single sequences")
      ->check(CLI::Range(1, 1024))
      ->delimiter(',');
  app.add_option("--lengths", options.lengths, "lengths of single sequences")
      ->check(CLI::Range(64, 1 << 20))
      ->delimiter(',');
  app.add_option("--trace", options.trace, "request trace with the lengths of the mixed batch")
      ->check(CLI::ExistingFile);
  app.add_option("--instruction-set", options.instruction_set, "kernels; default: the best");
  CLI11_PARSE(app, argc, argv);
  try {
    return tributary::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cpu_limits: {}\n", error.what());
    return 1;
  }
}
