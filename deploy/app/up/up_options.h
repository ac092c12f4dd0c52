// The options of `tributary up`.
#pragma once

#include "deploy/service/control/control_options.h"
#include "deploy/service/worker/worker_options.h"

namespace tributary {

struct UpOptions {
  int workers = 2;
  ControlOptions control;
  WorkerOptions worker;           // without the options that say where the control plane is
  int start_timeout_ms = 60'000;  // until the service answers that it is ready
};

}  // namespace tributary
