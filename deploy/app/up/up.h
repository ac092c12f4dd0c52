// `tributary up`: a control plane and one pool of worker processes on this machine, started and
// ended together.
#pragma once

#include "deploy/app/up/up_options.h"

namespace tributary {

/// The text that `tributary control` writes before its URL, once it listens; up() reads it there.
inline constexpr auto kListeningOn = "listening on ";

/// Returns after SIGINT, SIGTERM or SIGHUP (unless that is ignored), when both have ended. Throws
/// kUnavailable if one of them ends by itself (the other has ended too by then), kDeadlineExceeded
/// if the service is not ready in time, kIo if a program cannot be started.
void up(const UpOptions& options);

}  // namespace tributary
