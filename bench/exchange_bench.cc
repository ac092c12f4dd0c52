// Time of the collectives by size: between processes under mpirun, otherwise between threads.
//
//   mpirun -np 4 exchange_bench [--max-bytes N]        exchange_bench --workers 4
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <vector>

#include "comm/local/run_ranks.h"
#include "core/interface/communicator.h"
#include "deploy/app/bench/collective_series.h"
#include "deploy/runtime/processor_name.h"
#include "kernels/reference/reference_backend.h"
#ifdef TRIBUTARY_HAS_MPI
#include "comm/mpi/launcher.h"
#include "comm/mpi/mpi_communicator.h"
#endif

namespace tributary {
namespace {

struct Options {
  int workers = 4;
  std::size_t max_bytes = std::size_t{4} << 20;
  double seconds = 0.3;  // per line of the table
};

void print_line(Backend& host, Communicator& communicator, CollectiveKind kind, std::size_t bytes,
                const Options& options) {
  bench::CollectiveSeries series(host, communicator, communicator, kind, bytes);
  const auto maximum = [&](double value) { return bench::maximum(communicator, value); };
  double warm = 0;
  for (int i = 0; i < 5; ++i) warm = maximum(series.run());
  // The same on every rank, as `warm` is.
  const auto calls = static_cast<std::size_t>(std::clamp(options.seconds * 1e6 / warm, 20.0, 5e3));
  std::vector<double> times(calls);
  for (double& time : times) time = series.run();
  std::ranges::sort(times);
  const double p50 = maximum(times[calls / 2]);
  const double p99 = maximum(times[calls * 99 / 100]);
  if (communicator.rank() != 0) return;
  const auto peers = static_cast<double>(communicator.size() - 1);
  const double received =
      static_cast<double>(bytes) * (kind == CollectiveKind::kBroadcast ? 1.0 : peers);
  fmt::print("{:<11}{:>12}{:>8}{:>12.1f}{:>12.1f}{:>12.3f}\n", collective_name(kind), bytes, calls,
             p50, p99, received / p50 * 1e-3);
  std::fflush(stdout);
}

void measure(Communicator& communicator, const Options& options) {
  if (communicator.rank() == 0) {
    fmt::print("{}; {} ranks, communicator {}\n", processor_name(), communicator.size(),
               communicator.name());
    fmt::print("the slowest rank's percentiles; GB/s: what a rank receives from others, at p50\n");
    fmt::print("{:<11}{:>12}{:>8}{:>12}{:>12}{:>12}\n", "collective", "block bytes", "calls",
               "p50 us", "p99 us", "GB/s");
  }
  const auto host = make_reference_backend();  // its memory is the host's
  for (const CollectiveKind kind : kCollectiveKinds) {
    for (std::size_t bytes = 8; bytes < options.max_bytes; bytes *= 8) {
      print_line(*host, communicator, kind, bytes, options);
    }
    print_line(*host, communicator, kind, options.max_bytes, options);
  }
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Time of the collectives by size");
  app.add_option("--workers", options.workers, "ranks as threads, where not under mpirun")
      ->check(CLI::Range(1, 1024));
  app.add_option("--max-bytes", options.max_bytes, "largest block between two ranks")
      ->check(CLI::Range(std::size_t{8}, std::size_t{1} << 30));
  app.add_option("--seconds", options.seconds, "per line of the table")
      ->check(CLI::Range(0.001, 60.0));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
#ifdef TRIBUTARY_HAS_MPI
  if (launched_by_mpirun()) {
    const MpiEnvironment environment(&argc, &argv);
    const auto communicator =
        make_mpi_communicator(environment, Deadline::after(std::chrono::seconds(60)));
    measure(*communicator, options);
    return 0;
  }
#endif
  run_ranks(options.workers, [&](Communicator& communicator) { measure(communicator, options); });
  return 0;
}

}  // namespace
}  // namespace tributary

int main(int argc, char** argv) {
  try {
    return tributary::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "exchange_bench: {}\n", error.what());
    return 1;
  }
}
