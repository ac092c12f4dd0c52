// An HTTP request and a response as plain values.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tributary {

struct HttpHeader {
  std::string name;  // compared without regard to case
  std::string value;
};

struct HttpRequest {
  std::string method;  // `GET`, `POST`, ...
  std::string path;    // decoded, without the query; begins with '/'
  std::string query;   // as sent, without '?'
  std::vector<HttpHeader> headers;
  std::string body;
  std::string remote;  // "ADDRESS:PORT" of the client

  /// The value of the first header of that name, or empty.
  [[nodiscard]] std::string_view header(std::string_view name) const noexcept;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<HttpHeader> headers;  // besides Content-Type, Content-Length, Server, Connection

  [[nodiscard]] std::string_view header(std::string_view name) const noexcept;
};

/// JSON {"error": {"code", "message"}} with that status.
[[nodiscard]] HttpResponse error_response(int status, std::string_view code,
                                          std::string_view message);

}  // namespace tributary
