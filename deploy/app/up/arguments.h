// Turns options into a command line that sets them, for processes that this program starts.
#pragma once

#include <string>
#include <vector>

#include "deploy/service/control/control_options.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

/// `control --listen ...`; parse_options() reads the same options from it.
[[nodiscard]] std::vector<std::string> command_line(const ControlOptions& options);
/// `worker --control ...`.
[[nodiscard]] std::vector<std::string> command_line(const WorkerOptions& options);

}  // namespace tributary
