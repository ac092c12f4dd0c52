// The options with which the program's commands reach a running service.
#pragma once

#include <string>
#include <string_view>

#include "core/base/option.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/protocol/credential_options.h"

namespace tributary {

/// Help of --service for commands that can do without.
inline constexpr std::string_view kInsteadOfOwnPool =
    "Use a running service, by its control plane's URL, instead of a pool of this program's own";

struct ServiceOptions {
  std::string url;
  std::string token_file;
  std::string certificate_authority;
  std::string tls_certificate, tls_key;
  int call_timeout_ms = 60'000;
  TransportChoice transport = TransportChoice::kAuto;
  bool busy_poll = false;

  [[nodiscard]] bool given() const noexcept { return !url.empty(); }

  /// For a command that cannot do without a service, or, with `optional`, needs --service for the
  /// others.
  template <class Visitor>
  void for_each_option(Visitor& v, std::string_view help, bool optional) {
    v(url, "--service", "URL", help, {.required = !optional});
    auto beside = v.with({.needs = optional ? "--service" : ""});
    visit_credentials(beside, token_file, certificate_authority);
    visit_certificate(beside, tls_certificate, tls_key, "for workers that ask for one");
    beside(call_timeout_ms, "--call-timeout-ms", {1, kMaxOptionMs},
           "Deadline of every call to the service");
    beside(transport, "--transport", "auto|ucx|tcp",
           "To workers; refuses those that speak another than asked");
    beside(busy_poll, "--busy-poll",
           "Spin while waiting for the service: microseconds less, a core more");
  }
};

/// Throws as read_token_file.
[[nodiscard]] TierClientConfig client_config(const ServiceOptions& options);

}  // namespace tributary
