// The time of decode steps while leaves of running sequences move between workers all the time,
// against the same steps without moves: phases of both in turn, so that whatever else the machine
// does meets both. Fails if any bit of any output differs.
//
//   mpirun -np 2 moving_steps [--move-bytes-per-s 0,1e8,1e9,1e10] ...
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

#include "bench/moving_pool.h"
#include "core/base/error.h"
#include "deploy/app/bench/step_case.h"
#include "deploy/app/bench/timing.h"
#include "deploy/runtime/backends.h"
#include "deploy/runtime/processor_name.h"
#include "deploy/runtime/run_workers.h"

namespace tributary::bench {
namespace {

struct Options {
  int workers = 0;
  int threads = 0;
  int heads = 16;
  int layers = 2;
  int sequences = 16;
  std::vector<std::int64_t> lengths{4096, 8192, 16'384, 32'768};
  int leaf_tokens = 2048;
  std::vector<double> rates{0, 1e8, 1e9, 1e10};
  int steps = 100;
  int repeat = 5;
};

double at(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const auto rank = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  return values[std::min(rank, values.size() - 1)];
}

/// The times of the steps of a phase, in microseconds.
struct Times {
  explicit Times(const PhaseFigures& phase)
      : p50(at(phase.step_us, 0.5)),
        // The highest one of a hundred is the maximum, not the 99th.
        p99(at(phase.step_us, 0.99 - 0.5 / static_cast<double>(phase.step_us.size()))) {}
  double p50, p99;
};

/// A phase without moves, and one with, side by side.
struct Pair {
  Times still, moving;
  double bytes_per_s;     // copied
  double bytes_per_step;  // of the phase with moves
};

using Value = double (*)(const Pair&);

double median_of(const std::vector<Pair>& pairs, Value value) {
  std::vector<double> values(pairs.size());
  std::ranges::transform(pairs, values.begin(), value);
  return median(std::move(values));
}

void print_head() {
  fmt::print(
      "\nms of a step: medians over the phases of each kind; x: with moves over without, medians\n"
      "over neighbouring phases\n"
      "{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>8}{:>7}\n",
      "bound/s", "moved/s", "MB/step", "p50", "p99", "moves p50", "p99", "p50 x", "p99 x");
}

void print_row(double rate, const std::vector<Pair>& pairs) {
  const auto ms = [&](Value value) { return median_of(pairs, value) * 1e-3; };
  fmt::print("{:>9.3g}{:>9.3g}{:>9.3g}{:>9.2f}{:>9.2f}{:>10.2f}{:>9.2f}{:>8.3f}{:>7.3f}\n", rate,
             median_of(pairs, [](const Pair& p) { return p.bytes_per_s; }),
             median_of(pairs, [](const Pair& p) { return p.bytes_per_step; }) * 1e-6,
             ms([](const Pair& p) { return p.still.p50; }),
             ms([](const Pair& p) { return p.still.p99; }),
             ms([](const Pair& p) { return p.moving.p50; }),
             ms([](const Pair& p) { return p.moving.p99; }),
             median_of(pairs, [](const Pair& p) { return p.moving.p50 / p.still.p50; }),
             median_of(pairs, [](const Pair& p) { return p.moving.p99 / p.still.p99; }));
  std::fflush(stdout);
}

/// Rank 0's part.
void lead(MovingPool& pool, const Options& options) {
  (void)pool.run(nullptr);  // every sequence whole on its worker: whose bits count
  fmt::print("copies alone: {:.2f} GB/s\n", pool.copy_alone() * 1e-9);
  std::vector<std::vector<Pair>> pairs(options.rates.size());
  std::vector<MoveSchedule> movers;
  for (const double rate : options.rates) movers.push_back(pool.make_mover(rate));
  for (int repeat = 0; repeat < options.repeat; ++repeat) {
    for (std::size_t r = 0; r < pairs.size(); ++r) {
      const bool moves_first = (repeat + static_cast<int>(r)) % 2 == 1;
      MoveSchedule* const move_schedule = options.rates[r] > 0 ? &movers[r] : nullptr;
      const PhaseFigures first = pool.run(moves_first ? move_schedule : nullptr);
      const PhaseFigures second = pool.run(moves_first ? nullptr : move_schedule);
      const PhaseFigures& moving = moves_first ? first : second;
      pairs[r].push_back({.still = Times(moves_first ? second : first),
                          .moving = Times(moving),
                          .bytes_per_s = moving.copied_bytes / moving.seconds,
                          .bytes_per_step = moving.copied_bytes / options.steps});
    }
  }
  print_head();
  for (std::size_t r = 0; r < pairs.size(); ++r) print_row(options.rates[r], pairs[r]);
  fmt::print("{} moves completed\n", pool.completed_moves());
  pool.stop();
}

void measure(Communicator& communicator, const Options& options) {
  MovingPoolConfig config{.attention = attention_shape(options.heads),
                          .layers = options.layers,
                          .prompts = {},
                          .steps = options.steps,
                          .leaf_tokens = options.leaf_tokens};
  for (int i = 0; i < options.sequences; ++i) {
    config.prompts.push_back(options.lengths[static_cast<std::size_t>(i) % options.lengths.size()]);
  }
  const int threads = options.threads > 0 ? options.threads : threads_per_worker(communicator);
  const auto backend = make_backend("cpu", threads);
  MovingPool pool(config, *backend, communicator);
  const bool leads = communicator.rank() == 0;
  if (leads) {
    fmt::print("{}; kernels {}; {} workers ({}), threads of each: {}\n", processor_name(),
               backend->name(), communicator.size(), communicator.name(), threads);
    fmt::print(
        "{} sequences of {} tokens, {} heads, {} layers, rows of {} bytes, leaves of {}; the last "
        "{} full leaves of each travel\n"
        "{} phases without and with moves for each bound, {} steps each\n",
        options.sequences, fmt::join(options.lengths, ", "), options.heads, options.layers,
        config.attention.row_bytes(), options.leaf_tokens, kMoveLeaves, options.repeat,
        options.steps);
    std::fflush(stdout);
    lead(pool, options);
  } else {
    pool.follow();
  }
  const std::vector<std::uint64_t> digests = pool.digests();
  const auto equal = std::ranges::count(digests, digests.front());
  if (leads) {
    fmt::print("digest {:016x} in {} of {} phases\n", digests.front(), equal, digests.size());
  }
  if (std::cmp_less(equal, digests.size())) {
    fail(ErrorCode::kInternal, "outputs of {} phases differ from those of the first, of {}",
         static_cast<std::int64_t>(digests.size()) - equal, digests.size());
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Decode steps while leaves move between workers, beside steps without moves");
  app.add_option("--workers", options.workers, "ranks as threads, where not under mpirun")
      ->check(CLI::Range(2, 1024));
  app.add_option("--threads", options.threads, "of each worker; default: its share of the cores")
      ->check(CLI::Range(1, 1024));
  app.add_option("--heads", options.heads, "query heads")->check(CLI::Range(1, 1024));
  app.add_option("--layers", options.layers, "rounds of a step")->check(CLI::Range(1, 1024));
  app.add_option("--sequences", options.sequences, "that decode together")
      ->check(CLI::Range(1, 4096));
  app.add_option("--lengths", options.lengths, "their tokens, in turn")
      ->check(CLI::Range(1, 1 << 20))
      ->delimiter(',');
  app.add_option("--leaf-tokens", options.leaf_tokens, "64 times a power of two")
      ->check(CLI::Range(64, 1 << 20));
  app.add_option("--move-bytes-per-s", options.rates, "bounds on copies; 0: no moves, the noise")
      ->check(CLI::Range(0.0, 1e12))
      ->delimiter(',');
  app.add_option("--steps", options.steps, "of a phase")->check(CLI::Range(1, 1 << 20));
  app.add_option("--repeat", options.repeat, "pairs of phases for each bound")
      ->check(CLI::Range(1, 10'000));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const Launcher launcher(&argc, &argv);
  if (!launcher.under_mpi() && options.workers == 0) options.workers = 2;
  launcher.run(options.workers,
               [&](Communicator& communicator) { measure(communicator, options); });
  return 0;
}

}  // namespace
}  // namespace tributary::bench

int main(int argc, char** argv) {
  try {
    return tributary::bench::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "moving_steps: {}\n", error.what());
    return 1;
  }
}
