// Every flag of the program, in one place: name, default, range, meaning.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "deploy/bench/bench_options.h"
#include "deploy/control/control_options.h"
#include "deploy/plan/plan.h"
#include "deploy/prefill/prefill.h"
#include "deploy/replay/replay.h"
#include "deploy/simulate/simulate.h"
#include "deploy/top/top.h"
#include "deploy/up/up_options.h"
#include "deploy/verify/verify.h"
#include "deploy/worker/worker_options.h"

namespace tributary {

enum class Command {
  kNone,
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
  kInfo,
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
};

struct ParseResult {
  Options options;
  bool exit = false;    // nothing to run: help, version, or bad flags
  int exit_status = 0;  // 2 for bad flags
  std::string text;     // help or version for stdout, or the error's one line for stderr
};

/// Never throws for what a user typed.
[[nodiscard]] ParseResult parse_options(int argc, const char* const* argv);

}  // namespace tributary
