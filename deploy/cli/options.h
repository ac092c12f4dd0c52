// Every flag of the program, in one place: name, default, range, meaning.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "deploy/replay/replay.h"
#include "deploy/simulate/simulate.h"
#include "deploy/verify/verify.h"

namespace tributary {

enum class Command { kNone, kVerify, kReplay, kSimulate, kInfo };

struct Options {
  Command command = Command::kNone;
  VerifyOptions verify;
  ReplayOptions replay;
  SimulateOptions simulate;
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
