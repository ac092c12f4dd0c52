// The program `tributary`: reads the command line, runs one subcommand, turns failures into one
// line and an exit status (1: it failed, 2: bad flags or files).
#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "deploy/cli/options.h"
#include "deploy/info/info.h"
#include "deploy/replay/replay.h"
#include "deploy/runtime/launch.h"
#include "deploy/simulate/simulate.h"
#include "deploy/verify/verify.h"

namespace tributary {
namespace {

constexpr auto kTraceTimeout = std::chrono::minutes(10);

/// Throws kIo unless `path` can be written; asked before the work that ends in it. Keeps what is
/// there.
void check_writable(const std::optional<std::filesystem::path>& path) {
  if (!path) return;
  const std::ofstream file(*path, std::ios::app);
  if (!file) fail(ErrorCode::kIo, "{}: cannot be written", path->string());
}

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << '\n';
  file.flush();
  if (!file) fail(ErrorCode::kIo, "{}: cannot be written", path.string());
}

int run_verify(const VerifyOptions& options, const Launcher& launcher) {
  bool ok = true;
  launcher.run(options.workers, [&](Communicator& communicator) {
    const auto rows = verify(options, communicator);
    if (communicator.rank() != 0) return;
    for (const VerifyRow& row : rows) ok = ok && row.ok();
    fmt::print("{}", to_text(rows));
    fmt::print("{} on {} worker{} ({})\n", ok ? "verified" : "FAILED", communicator.size(),
               communicator.size() == 1 ? "" : "s", communicator.name());
  });
  return ok ? 0 : 1;
}

int run_replay(const ReplayOptions& options, const Launcher& launcher) {
  launcher.run(options.workers, [&](Communicator& communicator) {
    std::vector<TraceRequest> requests;
    if (communicator.rank() == 0) {
      check_writable(options.json);
      requests = replay_requests(options);
    }
    // The others wait here, not with the pool's deadlines, for a trace that may be long.
    std::byte ready{};
    communicator.broadcast(std::span(&ready, 1), 0, Deadline::after(kTraceTimeout))
        .throw_if_error();
    const ReplayReport report =
        replay(options, requests, communicator, launcher.stderr_is_terminal());
    if (communicator.rank() != 0) return;
    fmt::print("{}", to_text(report));
    if (options.json) write_file(*options.json, to_json(report));
  });
  return 0;
}

int run_simulate(const SimulateOptions& options, const Launcher& launcher) {
  if (launcher.under_mpi() && launcher.workers(0) > 1) {
    fail(ErrorCode::kInvalidArgument, "simulate runs in one process, not under a launcher");
  }
  check_writable(options.json);
  const SimulateReport report = simulate(options);
  fmt::print("{}", to_text(report));
  if (options.json) write_file(*options.json, to_json(report));
  return 0;
}

int run(const Options& options, const Launcher& launcher) {
  switch (options.command) {
    case Command::kVerify:
      return run_verify(options.verify, launcher);
    case Command::kReplay:
      return run_replay(options.replay, launcher);
    case Command::kSimulate:
      return run_simulate(options.simulate, launcher);
    case Command::kInfo:
      if (launcher.speaks()) fmt::print("{}", info_text());
      return 0;
    case Command::kNone:
      break;
  }
  return 2;
}

/// 2 for what the user can mend by other flags or files.
int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kMalformedInput:
    case ErrorCode::kUnsupported:
    case ErrorCode::kNotFound:
    case ErrorCode::kIo:
    case ErrorCode::kPoolFull:  // --kv-gib asks for more memory than there is
    case ErrorCode::kTooLarge:
      return 2;
    default:
      return 1;
  }
}

int main_with(int argc, char** argv) {
  Launcher launcher(&argc, &argv);
  const ParseResult parsed = parse_options(argc, argv);
  if (parsed.exit) {
    if (!launcher.speaks()) return parsed.exit_status;
    if (parsed.exit_status == 0) {
      fmt::print("{}", parsed.text);
    } else {
      fmt::print(stderr, "tributary: {}\n", parsed.text);
    }
    return parsed.exit_status;
  }
  try {
    return run(parsed.options, launcher);
  } catch (const Error& error) {
    // One line, not one a rank; where rank 0 may be the one that is lost, the others speak too.
    const bool late = error.code() == ErrorCode::kDeadlineExceeded;
    if (launcher.speaks() || late) {
      fmt::print(stderr, "tributary: {}{}\n", error.what(),
                 late ? " (a worker is dead, stuck or too slow)" : "");
    }
    return exit_status(error.code());
  }
}

}  // namespace
}  // namespace tributary

int main(int argc, char** argv) {
  try {
    return tributary::main_with(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tributary: %s\n", error.what());
    return 1;
  }
}
