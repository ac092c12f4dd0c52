// The parts of an http or https URL.
#pragma once

#include <string>
#include <string_view>

namespace tributary {

struct Url {
  bool tls = false;
  std::string host;  // without brackets
  int port = 0;
  std::string path;  // begins with '/'
};

/// Parses `http://HOST[:PORT][/PATH]`, `https://...`, or `HOST:PORT` (http). Throws
/// kInvalidArgument, also for user names, queries and fragments.
[[nodiscard]] Url parse_url(std::string_view text);

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};
/// `HOST:PORT` or `[V6]:PORT`, port 0 .. 65535. Throws kInvalidArgument.
[[nodiscard]] HostPort parse_host_port(std::string_view text);

}  // namespace tributary
