// The text of HTTP that we write and read ourselves: the head of a response, the path of a request.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "comm/http/http_message.h"

namespace tributary {

/// What of a connection stands in a response's head.
struct ResponseHead {
  bool keep_alive = true;
  bool http_1_0 = false;  // keeping a connection is then said aloud
};

/// Whether the header would not break out of its line.
[[nodiscard]] bool is_header(const HttpHeader& header) noexcept;
/// Whether nothing in the response would break out of its head.
[[nodiscard]] bool is_sendable(const HttpResponse& response) noexcept;
/// Whether a response with that status has a body at all.
[[nodiscard]] bool has_body(int status) noexcept;
/// Status line and headers, with the empty line.
[[nodiscard]] std::string response_head(const HttpResponse& response, const ResponseHead& head);

struct Target {
  std::string path;
  std::string query;
};
/// Path and query of a request's target in origin or absolute form, escapes of the path decoded.
/// Nothing for a bad escape, a NUL, another form.
[[nodiscard]] std::optional<Target> parse_target(std::string_view target);

}  // namespace tributary
