#include "comm/http/http_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/status.hpp>
#include <ctime>
#include <iterator>
#include <nlohmann/json.hpp>

namespace tributary {
namespace {

std::string_view find_header(const std::vector<HttpHeader>& headers,
                             std::string_view name) noexcept {
  const auto found = std::find_if(headers.begin(), headers.end(), [name](const HttpHeader& header) {
    return boost::beast::iequals(header.name, {name.data(), name.size()});
  });
  return found == headers.end() ? std::string_view{} : std::string_view(found->value);
}

bool is_token(std::string_view text) noexcept {
  static constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kMarks.find(c) != std::string_view::npos;
  });
}

bool is_value(std::string_view text) noexcept {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return c == '\r' || c == '\n' || c == '\0'; });
}

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> decode_path(std::string_view text) {
  std::string path;
  path.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (text.size() - i < 3) return std::nullopt;
      const int high = hex_digit(text[i + 1]);
      const int low = hex_digit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (c == '\0') return std::nullopt;
    path.push_back(c);
  }
  return path;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const noexcept {
  return find_header(headers, name);
}

std::string_view HttpResponse::header(std::string_view name) const noexcept {
  return find_header(headers, name);
}

HttpResponse error_response(int status, std::string_view code, std::string_view message) {
  const nlohmann::json body = {{"error", {{"code", code}, {"message", message}}}};
  HttpResponse response;
  response.status = status;
  // A message may quote bytes from outside that are not UTF-8.
  response.body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  return response;
}

bool is_header(const HttpHeader& header) noexcept {
  return is_token(header.name) && is_value(header.value);
}

bool is_sendable(const HttpResponse& response) noexcept {
  return response.status >= 200 && response.status <= 599 && is_value(response.content_type) &&
         std::all_of(response.headers.begin(), response.headers.end(), is_header);
}

bool has_body(int status) noexcept {
  return status != 204 && status != 304;
}

std::string response_head(const HttpResponse& response, const ResponseHead& head) {
  namespace http = boost::beast::http;
  const auto reason =
      http::obsolete_reason(http::int_to_status(static_cast<unsigned>(response.status)));
  std::string text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "HTTP/1.1 {} {}\r\nServer: tributary\r\n", response.status,
                 std::string_view(reason.data(), reason.size()));
  fmt::format_to(out, "Date: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", fmt::gmtime(std::time(nullptr)));
  if (has_body(response.status)) {
    if (!response.content_type.empty()) {
      fmt::format_to(out, "Content-Type: {}\r\n", response.content_type);
    }
    fmt::format_to(out, "Content-Length: {}\r\n", response.body.size());
  }
  if (!head.keep_alive) {
    text += "Connection: close\r\n";
  } else if (head.http_1_0) {
    text += "Connection: keep-alive\r\n";
  }
  for (const HttpHeader& header : response.headers) {
    fmt::format_to(out, "{}: {}\r\n", header.name, header.value);
  }
  text += "\r\n";
  return text;
}

std::optional<Target> parse_target(std::string_view target) {
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.starts_with(scheme)) {
      target.remove_prefix(std::min(target.find_first_of("/?", scheme.size()), target.size()));
      if (target.empty() || target.front() == '?') return std::nullopt;
      break;
    }
  }
  if (!target.starts_with('/') || target.find('#') != std::string_view::npos) return std::nullopt;
  const std::size_t question = std::min(target.find('?'), target.size());
  auto path = decode_path(target.substr(0, question));
  if (!path.has_value()) return std::nullopt;
  return Target{std::move(*path),
                std::string(target.substr(std::min(question + 1, target.size())))};
}

}  // namespace tributary
