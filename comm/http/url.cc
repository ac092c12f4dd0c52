#include "comm/http/url.h"

#include <algorithm>
#include <charconv>

#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

constexpr std::size_t kMaxUrlBytes = 2048;  // the least that proxies and servers accept

/// Letters, digits, '-', '.', '_': names and IPv4 addresses. No user name, no escape.
bool is_host(std::string_view host) {
  return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '.' || c == '_';
  });
}

bool is_v6(std::string_view host) {
  return host.find(':') != std::string_view::npos &&
         std::all_of(host.begin(), host.end(), [](char c) {
           return (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') || (c >= '0' && c <= '9') ||
                  c == ':' || c == '.';
         });
}

/// For messages: the part before an '@' may be a password.
std::string shown(std::string_view text) {
  const std::size_t at = text.rfind('@');
  if (at == std::string_view::npos) return quote(text);
  const std::size_t scheme = text.find("://");
  const std::size_t begin = scheme == std::string_view::npos || scheme > at ? 0 : scheme + 3;
  return quote(fmt::format("{}***{}", text.substr(0, begin), text.substr(at)));
}

int parse_port(std::string_view digits, std::string_view text) {
  int port = 0;
  const char* end = digits.data() + digits.size();
  const auto [next, error] = std::from_chars(digits.data(), end, port);
  if (digits.empty() || digits.front() == '-' || error != std::errc{} || next != end ||
      port > 65535) {
    fail(ErrorCode::kInvalidArgument, "address {}: the port must be 0 .. 65535", shown(text));
  }
  return port;
}

/// `default_port` is used when the text has no port; -1: a port is required.
HostPort parse_authority(std::string_view authority, std::string_view text, int default_port) {
  std::string_view host;
  std::string_view rest;  // ":PORT" or nothing
  bool good = false;
  if (authority.starts_with('[')) {
    const std::size_t bracket = std::min(authority.find(']'), authority.size());
    host = authority.substr(1, bracket - 1);
    rest = authority.substr(std::min(bracket + 1, authority.size()));
    good = bracket < authority.size() && is_v6(host);
  } else {
    const std::size_t colon = std::min(authority.find(':'), authority.size());
    host = authority.substr(0, colon);
    rest = authority.substr(colon);
    good = is_host(host);
  }
  if (!good || (!rest.empty() && rest.front() != ':') || (rest.empty() && default_port < 0)) {
    fail(ErrorCode::kInvalidArgument, "address {}: expected HOST:PORT or [V6]:PORT", shown(text));
  }
  return {std::string(host), rest.empty() ? default_port : parse_port(rest.substr(1), text)};
}

/// Visible ASCII without the characters that end a path.
bool is_path(std::string_view path) {
  return std::all_of(path.begin(), path.end(),
                     [](char c) { return c > ' ' && c < 0x7f && c != '?' && c != '#'; });
}

}  // namespace

Url parse_url(std::string_view text) {
  constexpr std::string_view kPlain = "http://";
  constexpr std::string_view kTls = "https://";
  if (text.size() > kMaxUrlBytes) {
    fail(ErrorCode::kInvalidArgument, "URL of {} bytes, at most {}", text.size(), kMaxUrlBytes);
  }
  Url url;
  std::string_view rest = text;
  int default_port = -1;
  if (text.starts_with(kPlain)) {
    rest.remove_prefix(kPlain.size());
    default_port = 80;
  } else if (text.starts_with(kTls)) {
    rest.remove_prefix(kTls.size());
    url.tls = true;
    default_port = 443;
  } else if (text.find('/') != std::string_view::npos) {
    fail(ErrorCode::kInvalidArgument, "URL {}: expected http://, https:// or HOST:PORT",
         shown(text));
  }
  const std::size_t slash = std::min(rest.find('/'), rest.size());
  HostPort authority = parse_authority(rest.substr(0, slash), text, default_port);
  url.host = std::move(authority.host);
  url.port = authority.port;
  url.path = slash < rest.size() ? std::string(rest.substr(slash)) : "/";
  if (!is_path(url.path)) {
    fail(ErrorCode::kInvalidArgument, "URL {}: the path has a query, a fragment or a bad character",
         shown(text));
  }
  if (url.port == 0) fail(ErrorCode::kInvalidArgument, "URL {}: port 0", shown(text));
  return url;
}

HostPort parse_host_port(std::string_view text) {
  return parse_authority(text, text, -1);
}

}  // namespace tributary
