#include "deploy/service/client/service_options.h"

#include "deploy/service/protocol/token_file.h"

namespace tributary {

TierClientConfig client_config(const ServiceOptions& options) {
  TierClientConfig config;
  config.url = options.url;
  if (!options.token_file.empty()) config.bearer_token = read_token_file(options.token_file);
  config.certificate_authority = options.certificate_authority;
  config.tls_certificate = options.tls_certificate;
  config.tls_key = options.tls_key;
  config.transport = options.transport;
  config.busy_poll = options.busy_poll;
  config.timeout = std::chrono::milliseconds(options.call_timeout_ms);
  return config;
}

}  // namespace tributary
