// The program `tributary`: reads the command line, runs one subcommand, turns failures into one line
// and an exit status (1: it failed, 2: bad flags or files).
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "core/base/error.h"
#include "deploy/cli/options.h"
#include "deploy/info/info.h"
#include "deploy/replay/replay.h"
#include "deploy/runtime/launch.h"
#include "deploy/simulate/simulate.h"
#include "deploy/verify/verify.h"

namespace tributary {
namespace {

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
    fmt::print("{}: {} workers ({})\n", ok ? "verified" : "FAILED", communicator.size(),
               communicator.name());
  });
  return ok ? 0 : 1;
}

int run_replay(const ReplayOptions& options, const Launcher& launcher) {
  const auto requests = replay_requests(options);
  launcher.run(options.workers, [&](Communicator& communicator) {
    const ReplayReport report = replay(options, requests, communicator, /*progress=*/true);
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
  const SimulateReport report = simulate(options);
  fmt::print("{}", to_text(report));
  if (options.json) write_file(*options.json, to_json(report));
  return 0;
}

int run(const Options& options, const Launcher& launcher) {
  switch (options.command) {
    case Command::kVerify: return run_verify(options.verify, launcher);
    case Command::kReplay: return run_replay(options.replay, launcher);
    case Command::kSimulate: return run_simulate(options.simulate, launcher);
    case Command::kInfo:
      if (launcher.speaks()) fmt::print("{}", info_text());
      return 0;
    case Command::kNone: break;
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
    case ErrorCode::kTooLarge: return 2;
    default: return 1;
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
      fmt::print(stderr, "tributary: {} (see tributary --help)\n", parsed.text);
    }
    return parsed.exit_status;
  }
  try {
    return run(parsed.options, launcher);
  } catch (const Error& error) {
    // One line, not one a rank; where rank 0 may be the one that is lost, the others speak too.
    if (launcher.speaks() || error.code() == ErrorCode::kDeadlineExceeded) {
      fmt::print(stderr, "tributary: {}\n", error.what());
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
