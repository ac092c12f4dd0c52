// The program `tributary`: reads the command line, runs one subcommand, turns failures into one
// line and an exit status (1: it failed, 2: bad flags or files).
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "comm/http/http_client.h"
#include "comm/local/local_transport.h"
#include "core/base/error.h"
#include "core/base/line_writer.h"
#include "deploy/app/bench/bench.h"
#include "deploy/app/info/info.h"
#include "deploy/app/meet/meet_service.h"
#include "deploy/app/options.h"
#include "deploy/app/prefill/prefill.h"
#include "deploy/app/program_end.h"
#include "deploy/app/program_start.h"
#include "deploy/app/replay/replay.h"
#include "deploy/app/report_file.h"
#include "deploy/app/top/top.h"
#include "deploy/app/up/up.h"
#include "deploy/app/verify/verify.h"
#include "deploy/predict/plan/plan_command.h"
#include "deploy/predict/plan/plan_table.h"
#include "deploy/predict/simulate/simulate.h"
#include "deploy/runtime/descriptors.h"
#include "deploy/runtime/run_workers.h"
#include "deploy/service/control/control.h"
#include "deploy/service/transport/data_transport.h"
#include "deploy/service/worker/leader/control_link.h"
#include "deploy/service/worker/meet_pool.h"
#include "deploy/service/worker/process_memory.h"
#include "deploy/service/worker/serve_pool.h"

namespace tributary {
namespace {

constexpr auto kTraceTimeout = std::chrono::minutes(10);

/// Throws kInvalidArgument for a command that runs in one process and was started by a launcher.
void require_one_process(const char* command, const Launcher& launcher) {
  if (launcher.under_mpi() && launcher.workers(0) > 1) {
    fail(ErrorCode::kInvalidArgument, "{} runs in one process, not under a launcher", command);
  }
}

int show(const Verification& result, const std::string& where) {
  bool ok = !result.rows.empty();
  for (const VerifyRow& row : result.rows) ok = ok && row.ok();
  fmt::print("{}", to_text(result.rows));
  for (const std::string& line : result.skipped) fmt::print("skipped {}\n", line);
  fmt::print("{} {}\n", result.rows.empty() ? "NOTHING verified" : (ok ? "verified" : "FAILED"),
             where);
  return ok ? 0 : 1;
}

/// The data plane of workers that are threads; null where they are processes.
std::shared_ptr<LocalNetwork> local_network(const Launcher& launcher) {
  return launcher.under_mpi() ? nullptr : std::make_shared<LocalNetwork>();
}

int run_verify(const VerifyOptions& options, const Launcher& launcher) {
  if (is_known(options.rows) == !options.files.empty()) {
    fail(ErrorCode::kInvalidArgument, "verify: FILE is required, or --rows without one");
  }
  if (is_known(options.rows)) {
    require_one_process("verify --rows", launcher);
    fmt::print("{}", row_errors_text(options.rows));
    return 0;
  }
  if (options.service.given()) {
    require_one_process("verify --service", launcher);
    return show(verify_service(options), fmt::format("through {}", options.service.url));
  }
  int status = 0;
  const auto network = local_network(launcher);
  launcher.run(options.workers, [&](Communicator& communicator) {
    const Verification result = verify(options, communicator, network);
    if (communicator.rank() != 0) return;
    status = show(result, fmt::format("on {} worker{} ({})", communicator.size(),
                                      communicator.size() == 1 ? "" : "s", communicator.name()));
  });
  return status;
}

/// The files of a replay besides its trace, looked at before the run.
class ReplayFiles {
 public:
  explicit ReplayFiles(const ReplayOptions& options) : json_(options.json) {
    check_writable(json_);
    if (options.baseline) baseline_ = read_baseline(*options.baseline);
  }

  /// The exit status.
  [[nodiscard]] int show(const ReplayReport& report) const {
    const std::string json = to_json(report);
    write_report(json_, to_text(report) + (baseline_ ? compare_reports(*baseline_, json) : ""),
                 json);
    return report.ended_by == 0 ? 0 : 128 + report.ended_by;  // as a shell says it
  }

 private:
  std::optional<std::filesystem::path> json_;
  std::optional<Baseline> baseline_;
};

int run_replay(const ReplayOptions& options, const Launcher& launcher) {
  if (options.service.given()) {
    require_one_process("replay --service", launcher);
    const ReplayFiles files(options);
    const std::vector<TraceRequest> requests = replay_requests(options);
    return files.show(
        with_service([&] { return replay_service(options, requests, launcher.terminal()); }));
  }
  int status = 0;
  const auto network = local_network(launcher);
  launcher.run(options.workers, [&](Communicator& communicator) {
    std::optional<ReplayFiles> files;
    std::vector<TraceRequest> requests;
    if (communicator.rank() == 0) {
      files.emplace(options);
      requests = replay_requests(options);
    }
    // The other ranks wait for the trace here, since reading a long one takes longer than the
    // pool's deadlines.
    std::byte ready{};
    communicator.broadcast(std::span(&ready, 1), 0, Deadline::after(kTraceTimeout))
        .throw_if_error();
    const ReplayReport report =
        replay(options, requests, communicator, network, launcher.terminal());
    if (files) status = files->show(report);
  });
  return status;
}

int run_simulate(const SimulateOptions& options, const Launcher& launcher) {
  require_one_process("simulate", launcher);
  check_writable(options.json);
  check_writable(options.svg);
  const SimulateReport report = simulate(options);
  write_report(options.json, to_text(report), to_json(report));
  if (options.svg) write_file(*options.svg, to_svg(report));
  return 0;
}

int run_bench_command(const BenchOptions& options, const Launcher& launcher) {
  launcher.run(options.workers, [&](Communicator& communicator) {
    if (communicator.rank() == 0) check_writable(options.json);
    const BenchReport report = run_bench(options, communicator);
    if (communicator.rank() == 0) write_report(options.json, report.text, report.json);
  });
  return 0;
}

int run_plan(const PlanOptions& options, const Launcher& launcher) {
  require_one_process("plan", launcher);
  check_writable(options.json);
  if (options.table) {
    const PlanTable table = plan_table(options);
    write_report(options.json, to_text(table, options), to_json(table));
    return 0;
  }
  const PlanReport report = plan(options);
  write_report(options.json, to_text(report, options), to_json(report, options));
  return 0;
}

int run_prefill(const PrefillOptions& options, const Launcher& launcher) {
  require_one_process("prefill", launcher);
  check_writable(options.sequence_out);
  fmt::print("{}", to_text(prefill(options)));
  return 0;
}

int run_control_plane(const ControlOptions& options, const Launcher& launcher) {
  require_one_process("control", launcher);
  run_control(options, [&](const std::string& address) {
    fmt::print("{}http{}://{}\n", kListeningOn, options.tls_certificate.empty() ? "" : "s",
               address);
    std::fflush(stdout);
  });
  return 0;
}

std::atomic<bool> asked_to_leave = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler sets it

/// From now on the first SIGINT or SIGTERM asks this process to end, and the next one ends it.
std::function<bool()> first_signal_asks() {
  for (const int number : {SIGINT, SIGTERM}) {
    (void)std::signal(number, [](int signal) {
      asked_to_leave = true;
      (void)std::signal(signal, SIG_DFL);
    });
  }
  return [] { return asked_to_leave.load(); };
}

int run_pool(const WorkerOptions& options, const Launcher& launcher) {
  give_back_freed_memory();
  const bool alone = options.meeting.given();  // started by nobody who knows the others
  MeshDoor door;
  const auto body = [&](Communicator& communicator) {
    WorkerEvents events;
    events.signals = true;
    events.own_process = alone || launcher.under_mpi();
    if (alone && communicator.rank() > 0) events.asked_to_leave = first_signal_asks();
    // This rank may be stuck in a call to MPI: an orderly shutdown is not possible.
    events.fatal = [](const Status& status) {
      fmt::print(stderr, "tributary: {}: {}\n", error_code_name(status.code()), status.message());
      std::_Exit(1);
    };
    // Connects before anything is loaded. Only rank 0 has a control plane.
    ConnectControl connect_control;
    if (communicator.rank() == 0) connect_control = connect_by_link(options, events.signals);
    const PoolRanks ranks(communicator, alone && communicator.rank() == 0 ? &door : nullptr);
    run_worker(options, ranks, make_data_transport(), events, connect_control);
  };
  if (!alone) {
    launcher.run(0, body);
    return 0;
  }
  require_one_process("worker --slots", launcher);
  const auto communicator = meet_pool(
      options, door,
      [](const std::string& line) { stderr_lines().write(fmt::format("tributary: {}", line)); },
      steady_clock());
  run_worker_of(*communicator, body);
  return 0;
}

int run_up(const UpOptions& options, const Launcher& launcher) {
  if (launcher.under_mpi()) {
    fail(ErrorCode::kInvalidArgument, "up starts mpirun itself, and is not started by it");
  }
  up(options);
  return 0;
}

int run(const Options& options, const Launcher& launcher) {
  switch (options.command) {
    case Command::kUp:
      return run_up(options.up, launcher);
    case Command::kControl:
      return run_control_plane(options.control, launcher);
    case Command::kWorker:
      return run_pool(options.worker, launcher);
    case Command::kPrefill:
      return run_prefill(options.prefill, launcher);
    case Command::kVerify:
      return run_verify(options.verify, launcher);
    case Command::kReplay:
      return run_replay(options.replay, launcher);
    case Command::kSimulate:
      return run_simulate(options.simulate, launcher);
    case Command::kTop:
      require_one_process("top", launcher);
      with_service([&] { top(options.top); });
      return 0;
    case Command::kBench:
      return run_bench_command(options.bench, launcher);
    case Command::kPlan:
      return run_plan(options.plan, launcher);
    case Command::kInfo:
      if (launcher.speaks()) fmt::print("{}", options.info.json ? info_json() + '\n' : info_text());
      return 0;
    case Command::kConfig:  // parse_options() has run it
    case Command::kNone:
      break;
  }
  return 2;
}

/// Whether an error may come from another process instead of this one's flags and files.
bool uses_service(const Options& options) {
  switch (options.command) {
    case Command::kPrefill:
    case Command::kTop:
      return true;
    case Command::kVerify:
      return options.verify.service.given();
    case Command::kReplay:
      return options.replay.service.given();
    default:
      return false;
  }
}

/// 2 if the user can fix the error with other flags or files.
int exit_status(ErrorCode code, bool service) {
  if (service && (code == ErrorCode::kNotFound || code == ErrorCode::kPoolFull)) return 1;
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
      fmt::print(stderr, "tributary: {}: {}\n", error_code_name(parsed.code), parsed.text);
    }
    return parsed.exit_status;
  }
  // `up` needs few descriptors, and mpirun, which inherits its limit, may walk through all of them.
  if (parsed.options.command != Command::kUp) raise_descriptor_limit();
  try {
    return run(parsed.options, launcher);
  } catch (const Error& error) {
    // Prints one line, not one per rank. The others print theirs too if rank 0 may be the lost one.
    const bool late = error.code() == ErrorCode::kDeadlineExceeded;
    const bool service = uses_service(parsed.options);
    if (launcher.speaks() || late) {
      // Scripts act on the code.
      fmt::print(stderr, "tributary: {}: {}{}\n", error_code_name(error.code()), error.what(),
                 late && !service ? " (a worker is dead, stuck or too slow)" : "");
    }
    // An error in a service's answer is not an error in our flags or files.
    if (dynamic_cast<const AnswerError*>(&error) != nullptr) return 1;
    return exit_status(error.code(), service);
  }
}

}  // namespace
}  // namespace tributary

int main(int argc, char** argv) {
  tributary::keep_hangup_ignored();
  std::set_terminate(tributary::end_badly);
  try {
    return tributary::flushed(tributary::main_with(argc, argv));
  } catch (const std::system_error& error) {
    // A thread, above all: the container's pids.max, ulimit -u.
    std::fprintf(stderr, "tributary: io: the system refused: %s\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tributary: internal: %s\n", error.what());
    return 1;
  }
}
