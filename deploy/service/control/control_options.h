// The options of `tributary control`.
#pragma once

#include <string>

#include "core/base/option.h"
#include "deploy/service/protocol/credential_options.h"

namespace tributary {

struct ControlOptions {
  std::string listen = "127.0.0.1:7300";
  std::string token_file, client_token_file, pool_token_file, operator_token_file;  // see roles.h
  std::string tls_certificate, tls_key;
  std::string health_listen;
  int max_connections = 256;
  int failure_timeout_ms = 10'000;

  template <class Visitor>
  void for_each_option(Visitor& v) {
    for_each_plane_option(v);
    visit_certificate(v, tls_certificate, tls_key, "serves https");
    v(token_file, "--token-file", "FILE", "Bearer token for everything",
      {.shown_default = "none: without any token loopback only"});
    v(failure_timeout_ms, "--failure-timeout-ms", {1'000, kMaxOptionMs},
      "How long a pool may take to answer; sequences of a pool that is not heard wait for it half "
      "as long again");
  }

  /// What `tributary up` does not have from its pool's options as well.
  template <class Visitor>
  void for_each_plane_option(Visitor& v) {
    v(listen, "--listen", "ADDRESS:PORT",
      "Where HTTP is served; other addresses than loopback need a token");
    v(client_token_file, "--client-token-file", "FILE",
      "A token that may admit, ask for and free sequences, and no more", {.shown_default = "none"});
    v(pool_token_file, "--pool-token-file", "FILE", "One that may register pools, and no more",
      {.shown_default = "none"});
    v(operator_token_file, "--operator-token-file", "FILE",
      "One that may read metrics and the cluster and drain pools, and no more",
      {.shown_default = "none"});
    v(health_listen, "--health-listen", "ADDRESS:PORT",
      "Serve /healthz and /readyz here too, with connections of their own that no crowd at "
      "--listen can take",
      {.shown_default = "none"});
    v(max_connections, "--max-connections", {1, 1 << 16}, "Connections at a time");
  }
};

}  // namespace tributary
