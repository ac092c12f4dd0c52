#include "deploy/service/control/http_reply.h"

#include <utility>

#include "deploy/service/protocol/json_object.h"

namespace tributary {

int http_status(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kOk:
      return 200;
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kMalformedInput:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCorrupt:
      return 400;
    case ErrorCode::kPermissionDenied:
      return 401;
    case ErrorCode::kNotFound:
      return 404;
    case ErrorCode::kFailedPrecondition:
    case ErrorCode::kStaleEpoch:
    case ErrorCode::kWorkerLost:
    case ErrorCode::kAlreadyExists:
      return 409;
    case ErrorCode::kPoolLost:
      return 410;
    case ErrorCode::kTooLarge:
      return 413;
    case ErrorCode::kPoolFull:
      return 429;
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      return 500;
    case ErrorCode::kCommunicatorPoisoned:
    case ErrorCode::kWorkerFailed:
      return 502;
    case ErrorCode::kUnavailable:
      return 503;
    case ErrorCode::kDeadlineExceeded:
      return 504;
  }
  return 500;
}

HttpResponse json_reply(int status, std::string body) {
  HttpResponse response;
  response.status = status;
  response.body = std::move(body);
  return response;
}

HttpResponse error_reply(int status, ErrorCode code, const std::string& message) {
  return json_reply(
      status, json_text({{"error", {{"code", error_code_name(code)}, {"message", message}}}}));
}

HttpResponse error_reply(ErrorCode code, const std::string& message) {
  return error_reply(http_status(code), code, message);
}

}  // namespace tributary
