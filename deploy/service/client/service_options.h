// The options with which the program's commands reach a running service.
#pragma once

#include <filesystem>
#include <string>

#include "deploy/service/client/tier_client.h"

namespace tributary {

struct ServiceOptions {
  std::string url;                                     // of the control plane; empty: no service
  std::string token_file;                              // bearer token for it; empty: none
  std::string certificate_authority;                   // PEM file for https; empty: the system's
  std::string tls_certificate, tls_key;                // PEM files, for workers that ask for them
  int call_timeout_ms = 60'000;                        // deadline of every call
  TransportChoice transport = TransportChoice::kAuto;  // to workers: agrees to no other
  bool busy_poll = false;

  [[nodiscard]] bool given() const noexcept { return !url.empty(); }
};

/// Throws as read_token_file.
[[nodiscard]] TierClientConfig client_config(const ServiceOptions& options);

}  // namespace tributary
