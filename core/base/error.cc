#include "core/base/error.h"

namespace tributary {

std::string_view error_code_name(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk:
      return "ok";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kMalformedInput:
      return "malformed_input";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kNotFound:
      return "not_found";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kPoolFull:
      return "pool_full";
    case ErrorCode::kTooLarge:
      return "too_large";
    case ErrorCode::kFailedPrecondition:
      return "failed_precondition";
    case ErrorCode::kStaleEpoch:
      return "stale_epoch";
    case ErrorCode::kDeadlineExceeded:
      return "deadline_exceeded";
    case ErrorCode::kCommunicatorPoisoned:
      return "communicator_poisoned";
    case ErrorCode::kWorkerFailed:
      return "worker_failed";
    case ErrorCode::kWorkerLost:
      return "worker_lost";
    case ErrorCode::kPoolLost:
      return "pool_lost";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kPermissionDenied:
      return "permission_denied";
    case ErrorCode::kAlreadyExists:
      return "already_exists";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

}  // namespace tributary
