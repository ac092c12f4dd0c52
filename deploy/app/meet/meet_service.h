// The first word with a control plane.
#pragma once

#include <string>

#include "deploy/service/client/service_options.h"

namespace tributary {

/// Returns once the control plane answers. One that nobody listens for may be starting: throws
/// kUnavailable after some seconds. Of one that is silent, stderr says after 2 s that this waits;
/// throws kDeadlineExceeded after the options' timeout.
void meet_service(const ServiceOptions& options);

}  // namespace tributary
