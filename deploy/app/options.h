// Every command of the program with its table of options, and the command line that fills them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "deploy/app/bench/bench_options.h"
#include "deploy/app/config/config_options.h"
#include "deploy/app/info/info.h"
#include "deploy/app/prefill/prefill.h"
#include "deploy/app/replay/replay.h"
#include "deploy/app/top/top.h"
#include "deploy/app/up/up_options.h"
#include "deploy/app/verify/verify.h"
#include "deploy/options/option_table.h"
#include "deploy/predict/plan/plan_command.h"
#include "deploy/predict/simulate/simulate_options.h"
#include "deploy/service/control/control_options.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

/// In the order of command_tables().
enum class Command {
  kUp,
  kControl,
  kWorker,
  kPrefill,
  kVerify,
  kReplay,
  kSimulate,
  kTop,
  kBench,
  kPlan,
  kConfig,
  kInfo,
  kNone,
};

struct Options {
  Command command = Command::kNone;
  UpOptions up;
  ControlOptions control;
  WorkerOptions worker;
  PrefillOptions prefill;
  VerifyOptions verify;
  ReplayOptions replay;
  SimulateOptions simulate;
  TopOptions top;
  BenchOptions bench;
  PlanOptions plan;
  ConfigOptions config;
  InfoOptions info;
};

/// Every command, in the order of the help. The lines refer to the fields of `options`.
[[nodiscard]] std::vector<CommandTable> command_tables(Options& options);

struct ParseResult {
  Options options = {};
  bool exit = false;    // nothing to run: help, version, or bad flags
  int exit_status = 0;  // 2 for bad flags
  ErrorCode code = ErrorCode::kOk;
  std::string text;  // help or version for stdout, or the error's one line for stderr
};

/// Never throws for a user's text.
[[nodiscard]] ParseResult parse_options(int argc, const char* const* argv);

}  // namespace tributary
