#include "deploy/control/control.h"

#include <utility>

#include "comm/http/http_server.h"
#include "deploy/control/admissions.h"
#include "deploy/control/api.h"
#include "deploy/control/bearer_auth.h"
#include "deploy/control/control_log.h"
#include "deploy/control/pool_links.h"
#include "deploy/control/pool_registry.h"
#include "deploy/tier/token_file.h"

namespace tributary {

namespace {

using std::chrono::milliseconds;

void check_bound(std::string_view name, int value, int min, int max) {
  if (value < min || value > max) {
    fail(ErrorCode::kInvalidArgument, "{} {}: not in {} .. {}", name, value, min, max);
  }
}

void validate(const ControlOptions& options) {
  check_bound("max-connections", options.max_connections, 1, 65'536);
  // Pools beat twice a second: a shorter timeout would lose healthy ones.
  check_bound("pool-timeout-ms", options.pool_timeout_ms, 1'000, 60'000);
  check_bound("admission-timeout-ms", options.admission_timeout_ms, 100, 600'000);
  check_bound("max-body-bytes", options.max_body_bytes, 1'024, 1 << 24);
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    fail(ErrorCode::kInvalidArgument, "TLS needs a certificate and its key: only the {} is there",
         options.tls_key.empty() ? "certificate" : "key");
  }
  check_exposure(options.listen, !options.token_file.empty());
}

HttpServerConfig server_config(const ControlOptions& options) {
  HttpServerConfig config;
  config.listen = options.listen;
  if (!options.tls_certificate.empty()) {
    config.tls = HttpServerConfig::Tls{options.tls_certificate, options.tls_key};
  }
  config.max_body_bytes = static_cast<std::size_t>(options.max_body_bytes);
  config.max_connections = options.max_connections;
  // Our own deadline comes first, with a better message.
  config.response_timeout = milliseconds(options.admission_timeout_ms) + milliseconds(5'000);
  return config;
}

Api::Config api_config(const ControlOptions& options) {
  Api::Config config;
  if (!options.token_file.empty()) config.token = read_token_file(options.token_file);
  config.timeout = milliseconds(options.admission_timeout_ms);
  config.version = TRIBUTARY_VERSION;
  return config;
}

}  // namespace

struct Control::Impl {
  Impl(EventLoop& loop, const ControlOptions& options)
      : registry(incarnation_now()),
        links(loop, registry, {milliseconds(options.pool_timeout_ms)},
              [this](const std::string& pool, const std::vector<SequenceInfo>& sequences) {
                admissions.restore(pool, sequences);
              }),
        admissions(
            registry, {milliseconds(options.admission_timeout_ms)},
            [this](const std::string& pool, ToPool message, ControlClock::time_point deadline,
                   PoolCalls::Done done) {
              links.call(pool, std::move(message), deadline, std::move(done));
            },
            ControlClock::now()),
        api(api_config(options), registry, admissions, links),
        server(loop, server_config(options), api.handlers()) {
    api.count_connections([this] { return server.connections(); });
  }

  // In the order of use: each knows those above.
  PoolRegistry registry;
  PoolLinks links;
  Admissions admissions;
  Api api;
  HttpServer server;
};

Control::Control(EventLoop& loop, const ControlOptions& options) {
  validate(options);
  impl_ = std::make_unique<Impl>(loop, options);
}

Control::~Control() = default;

const std::string& Control::address() const noexcept {
  return impl_->server.address();
}

void run_control(const ControlOptions& options,
                 const std::function<void(const std::string& address)>& ready) {
  EventLoop loop;
  const Control control(loop, options);
  const auto termination = loop.on_termination([&loop] {
    log_info("stopping");
    loop.stop();
  });
  if (ready) ready(control.address());
  loop.run();
}

}  // namespace tributary
