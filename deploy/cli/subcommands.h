// The flags of each command; options.cc puts them together.
#pragma once

#include <CLI/CLI.hpp>

#include "deploy/cli/options.h"

namespace tributary {

// pool_commands.cc: those that run a pool, or the thought of one, by themselves.
CLI::App* add_verify(CLI::App& app, VerifyOptions& options);
CLI::App* add_replay(CLI::App& app, ReplayOptions& options);
CLI::App* add_simulate(CLI::App& app, SimulateOptions& options);

// service_commands.cc
CLI::App* add_worker(CLI::App& app, WorkerOptions& options);
CLI::App* add_control(CLI::App& app, ControlOptions& options);
CLI::App* add_up(CLI::App& app, UpOptions& options);
CLI::App* add_prefill(CLI::App& app, PrefillOptions& options);

}  // namespace tributary
