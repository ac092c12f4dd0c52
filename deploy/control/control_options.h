// What `tributary control` is told.
#pragma once

#include <string>

namespace tributary {

struct ControlOptions {
  std::string listen = "127.0.0.1:7300";
  std::string token_file;  // bearer token that every request needs; empty: loopback only
  std::string tls_certificate, tls_key;  // PEM files; both or none
  int max_connections = 256;
  int pool_timeout_ms = 1'500;        // a pool whose heartbeat is older is lost
  int admission_timeout_ms = 10'000;  // for a pool to answer
  int max_body_bytes = 64 * 1024;
};

}  // namespace tributary
