#include "deploy/client/service_options.h"

#include "deploy/tier/token_file.h"

namespace tributary {

TierClientConfig client_config(const ServiceOptions& options) {
  TierClientConfig config;
  config.url = options.url;
  if (!options.token_file.empty()) config.bearer_token = read_token_file(options.token_file);
  config.certificate_authority = options.certificate_authority;
  config.busy_poll = options.busy_poll;
  config.timeout = std::chrono::milliseconds(options.call_timeout_ms);
  return config;
}

}  // namespace tributary
