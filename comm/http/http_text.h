// The parts of HTTP that we write and parse ourselves: response heads and request paths.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "comm/http/http_message.h"

namespace tributary {

/// The connection's state that a response head announces.
struct ResponseHead {
  bool keep_alive = true;
  bool http_1_0 = false;  // HTTP/1.0 needs an explicit keep-alive header
};

/// Whether the header is valid: nothing in it ends its line.
[[nodiscard]] bool is_header(const HttpHeader& header) noexcept;
/// Whether status and headers are valid.
[[nodiscard]] bool is_sendable(const HttpResponse& response) noexcept;
/// Whether a response with this status may have a body.
[[nodiscard]] bool has_body(int status) noexcept;
/// Status line and headers, with the empty line.
[[nodiscard]] std::string response_head(const HttpResponse& response, const ResponseHead& head);

struct Target {
  std::string path;
  std::string query;
};
/// Path and query of a request target in origin or absolute form; escapes in the path are decoded.
/// No value for a bad escape, a NUL, or another form.
[[nodiscard]] std::optional<Target> parse_target(std::string_view target);

}  // namespace tributary
