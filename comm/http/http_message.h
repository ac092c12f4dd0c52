// HTTP requests and responses as plain values.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tributary {

struct HttpHeader {
  std::string name;  // case-insensitive
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
  std::vector<HttpHeader> headers;  // other than Content-Type, Content-Length, Server, Connection

  [[nodiscard]] std::string_view header(std::string_view name) const noexcept;
};

/// A response with `status` and the JSON body {"error": {"code", "message"}}.
[[nodiscard]] HttpResponse error_response(int status, std::string_view code,
                                          std::string_view message);

}  // namespace tributary
