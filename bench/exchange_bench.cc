// Time of the collectives by size: between processes under mpirun, else between threads.
//
//   mpirun -np 4 exchange_bench [--max-bytes N]        exchange_bench --workers 4
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string_view>
#include <vector>

#include "bench/machine_peak.h"
#include "comm/local/run_ranks.h"
#include "core/interface/communicator.h"
#ifdef TRIBUTARY_HAS_MPI
#include "comm/mpi/launcher.h"
#include "comm/mpi/mpi_communicator.h"
#endif

namespace tributary {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

struct Options {
  int workers = 4;
  std::size_t max_bytes = std::size_t{4} << 20;
  double seconds = 0.3;  // per line of the table
};

Deadline ample_deadline() {
  return Deadline::after(std::chrono::seconds(60));
}

enum class Collective : std::uint8_t { kBroadcast, kAllGather, kAllToAll };
constexpr std::array kCollectives = {Collective::kBroadcast, Collective::kAllGather,
                                     Collective::kAllToAll};

std::string_view collective_name(Collective collective) {
  switch (collective) {
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kAllToAll:
      return "all_to_all";
  }
  return "";
}

/// Runs one collective again and again; `bytes` is the block that travels between two ranks.
class Series {
 public:
  Series(Communicator& communicator, Collective collective, std::size_t bytes)
      : communicator_(communicator),
        collective_(collective),
        counts_(static_cast<std::size_t>(communicator.size()), bytes),
        block_(bytes),
        send_(collective == Collective::kAllToAll ? bytes * counts_.size() : 0),
        recv_(collective == Collective::kBroadcast ? 0 : bytes * counts_.size()) {}

  /// One call, after all ranks are ready for it; its time on this rank.
  double run() {
    meet();
    const auto begin = Deadline::Clock::now();
    Status status;
    switch (collective_) {
      case Collective::kBroadcast:
        status = communicator_.broadcast(block_, 0, ample_deadline());
        break;
      case Collective::kAllGather:
        status = communicator_.all_gather(block_, recv_, counts_, ample_deadline());
        break;
      case Collective::kAllToAll:
        status = communicator_.all_to_all(send_, counts_, recv_, counts_, ample_deadline());
        break;
    }
    const Microseconds time = Deadline::Clock::now() - begin;
    status.throw_if_error();
    return time.count();
  }

  /// The largest `value` over the ranks.
  double maximum(double value) {
    const auto ranks = static_cast<std::size_t>(communicator_.size());
    std::vector<double> values(ranks);
    const std::vector<std::size_t> counts(ranks, sizeof(double));
    communicator_
        .all_gather(std::as_bytes(std::span(&value, 1)), std::as_writable_bytes(std::span(values)),
                    counts, ample_deadline())
        .throw_if_error();
    return *std::ranges::max_element(values);
  }

 private:
  void meet() { maximum(0); }

  Communicator& communicator_;
  Collective collective_;
  std::vector<std::size_t> counts_;
  std::vector<std::byte> block_, send_, recv_;
};

void print_line(Communicator& communicator, Collective collective, std::size_t bytes,
                const Options& options) {
  Series series(communicator, collective, bytes);
  double warm = 0;
  for (int i = 0; i < 5; ++i) warm = series.maximum(series.run());
  // The same on every rank, as `warm` is.
  const auto calls = static_cast<std::size_t>(std::clamp(options.seconds * 1e6 / warm, 20.0, 5e3));
  std::vector<double> times(calls);
  for (double& time : times) time = series.run();
  std::ranges::sort(times);
  const double p50 = series.maximum(times[calls / 2]);
  const double p99 = series.maximum(times[calls * 99 / 100]);
  if (communicator.rank() != 0) return;
  const auto peers = static_cast<double>(communicator.size() - 1);
  const double received =
      static_cast<double>(bytes) * (collective == Collective::kBroadcast ? 1.0 : peers);
  fmt::print("{:<11}{:>12}{:>8}{:>12.1f}{:>12.1f}{:>12.3f}\n", collective_name(collective), bytes,
             calls, p50, p99, received / p50 * 1e-3);
  std::fflush(stdout);
}

void measure(Communicator& communicator, const Options& options) {
  if (communicator.rank() == 0) {
    fmt::print("{}; {} ranks, communicator {}\n", bench::describe_machine(), communicator.size(),
               communicator.name());
    fmt::print("the slowest rank's percentiles; GB/s: what a rank receives from others, at p50\n");
    fmt::print("{:<11}{:>12}{:>8}{:>12}{:>12}{:>12}\n", "collective", "block bytes", "calls",
               "p50 us", "p99 us", "GB/s");
  }
  for (const Collective collective : kCollectives) {
    for (std::size_t bytes = 8; bytes < options.max_bytes; bytes *= 8) {
      print_line(communicator, collective, bytes, options);
    }
    print_line(communicator, collective, options.max_bytes, options);
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
    MpiCommunicator communicator(environment, ample_deadline());
    measure(communicator, options);
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
