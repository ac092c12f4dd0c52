// The first word with a control plane.
#pragma once

#include <string>

#include "comm/http/http_client.h"
#include "core/base/error.h"
#include "deploy/service/client/service_options.h"

namespace tributary {

/// Returns once the control plane answers; throws AnswerError where another program does. One that
/// nobody listens for may be starting: throws kUnavailable after some seconds. Of one that is
/// silent, stderr says after 2 s that this waits; throws kDeadlineExceeded after the options'
/// timeout.
void meet_service(const ServiceOptions& options);

/// For work after this process's own files were read: what is malformed then is a service's answer,
/// and no flag or file of ours.
template <class Work>
auto with_service(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kMalformedInput) throw AnswerError(error.what());
    throw;
  }
}

}  // namespace tributary
