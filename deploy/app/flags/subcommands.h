// The flags of each command; options.cc puts them together.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <string>

#include "deploy/app/flags/options.h"

namespace tributary {

// pool_commands.cc: those that run or simulate a pool of their own.
CLI::App* add_verify(CLI::App& app, VerifyOptions& options);
CLI::App* add_replay(CLI::App& app, ReplayOptions& options);
CLI::App* add_simulate(CLI::App& app, SimulateOptions& options);

// machine_commands.cc: measured and predicted performance of machines.
CLI::App* add_bench(CLI::App& app, BenchOptions& options);
CLI::App* add_plan(CLI::App& app, PlanOptions& options);

// service_commands.cc
CLI::App* add_worker(CLI::App& app, WorkerOptions& options);
CLI::App* add_control(CLI::App& app, ControlOptions& options);
CLI::App* add_up(CLI::App& app, UpOptions& options);
CLI::App* add_prefill(CLI::App& app, PrefillOptions& options);
CLI::App* add_top(CLI::App& app, TopOptions& options);

/// The request to `tributary config`: one of the two.
struct ConfigOptions {
  std::optional<std::filesystem::path> check;
  bool print_defaults = false;
};
// config_command.cc
CLI::App* add_config_command(CLI::App& app, ConfigOptions& options);
/// Runs `tributary config`; `app` must not have parsed any other command line. Never throws.
struct ConfigOutcome {
  std::string text;
  bool ok = true;
};
[[nodiscard]] ConfigOutcome run_config_command(CLI::App& app, const ConfigOptions& options);

}  // namespace tributary
