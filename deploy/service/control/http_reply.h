// Answers of the control plane: JSON, and errors with a stable code.
#pragma once

#include <string>

#include "comm/http/http_message.h"
#include "core/base/error.h"

namespace tributary {

/// The HTTP status that fits a code.
[[nodiscard]] int http_status(ErrorCode code) noexcept;
[[nodiscard]] HttpResponse json_reply(int status, std::string body);
/// {"error": {"code", "message"}}.
[[nodiscard]] HttpResponse error_reply(int status, ErrorCode code, const std::string& message);
[[nodiscard]] HttpResponse error_reply(ErrorCode code, const std::string& message);

}  // namespace tributary
