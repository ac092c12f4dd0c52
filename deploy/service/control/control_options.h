// The options of `tributary control`.
#pragma once

#include <string>

namespace tributary {

/// Bounds of the options in milliseconds. Pools beat twice a second: a shorter timeout would lose
/// healthy ones.
inline constexpr int kMinPoolTimeoutMs = 1'000;
inline constexpr int kMaxPoolTimeoutMs = 60'000;
inline constexpr int kMinAdmissionTimeoutMs = 100;
inline constexpr int kMaxAdmissionTimeoutMs = 600'000;

struct ControlOptions {
  std::string listen = "127.0.0.1:7300";
  /// Bearer tokens: the first is valid for every role, each of the others for one (roles.h). None:
  /// loopback only.
  std::string token_file;
  std::string client_token_file, pool_token_file, operator_token_file;
  std::string tls_certificate, tls_key;  // PEM files; both or none
  std::string health_listen;             // a second address, for health checks alone; empty: none
  int max_connections = 256;
  int pool_timeout_ms = 1'500;        // a pool whose heartbeat is older is lost
  int admission_timeout_ms = 10'000;  // for a pool to answer
  int max_body_bytes = 64 * 1024;
};

}  // namespace tributary
