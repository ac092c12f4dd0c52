#include "deploy/service/control/control.h"

#include <algorithm>
#include <utility>

#include "comm/http/http_server.h"
#include "core/base/option_check.h"
#include "core/interface/clock.h"
#include "deploy/service/control/admissions.h"
#include "deploy/service/control/api.h"
#include "deploy/service/control/bearer_auth.h"
#include "deploy/service/control/control_log.h"
#include "deploy/service/control/held_sequences.h"
#include "deploy/service/control/pool_links.h"
#include "deploy/service/control/pool_registry.h"
#include "deploy/service/control/refusal_log.h"
#include "deploy/service/control/roles.h"

namespace tributary {

namespace {

using std::chrono::milliseconds;

/// A flood of refusals becomes one line per second.
constexpr milliseconds kReportPeriod{1'000};

/// Half as long again: time to come back for a pool that has judged its own workers meanwhile.
milliseconds pool_patience(const ControlOptions& options) {
  return milliseconds(options.failure_timeout_ms) * 3 / 2;
}

void validate(const ControlOptions& options) {
  check_ranges(options);
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    fail(ErrorCode::kInvalidArgument, "TLS needs a certificate and its key: only the {} is there",
         options.tls_key.empty() ? "certificate" : "key");
  }
  check_exposure(options.listen, has_tokens(options));
}

/// The limits are few and short: a check must find room whatever arrives at the other address.
HttpServerConfig health_config(const ControlOptions& options) {
  HttpServerConfig config;
  config.listen = options.health_listen;
  config.max_connections = 32;
  config.read_timeout = config.write_timeout = milliseconds(2'000);
  return config;
}

HttpServerConfig server_config(const ControlOptions& options) {
  HttpServerConfig config;
  config.listen = options.listen;
  if (!options.tls_certificate.empty()) {
    config.tls = HttpServerConfig::Tls{options.tls_certificate, options.tls_key};
  }
  config.max_connections = options.max_connections;
  // Our own deadlines come first, with better messages: heartbeats tell of a silent pool.
  config.response_timeout = milliseconds(options.failure_timeout_ms) + milliseconds(5'000);
  // The connection of a silent pool is kept for as long as its sequences are.
  config.websocket_idle_timeout = pool_patience(options) + milliseconds(5'000);
  return config;
}

Api::Config api_config(const ControlOptions& options) {
  Api::Config config;
  config.tokens = RoleTokens(options);
  config.timeout = milliseconds(options.failure_timeout_ms);
  config.version = TRIBUTARY_VERSION;
  return config;
}

}  // namespace

struct Control::Impl {
  Impl(EventLoop& loop, const ControlOptions& options, const Clock& clock = steady_clock())
      : registry(incarnation_at(std::chrono::system_clock::now())),
        links(clock, registry, {.pool_patience = pool_patience(options)},
              [this](const std::string& pool, const std::vector<SequenceInfo>& sequences) {
                admissions.restore(pool, sequences);
              }),
        call_pool(
            [this](const std::string& pool, ToPool message, Time deadline, PoolCalls::Done done) {
              links.call(pool, std::move(message), deadline, std::move(done));
            }),
        admissions(clock, registry, {milliseconds(options.failure_timeout_ms)}, call_pool),
        held(clock, registry, milliseconds(options.failure_timeout_ms), call_pool),
        api(api_config(options), clock, registry, admissions, held, links),
        server(loop, server_config(options), api.handlers()) {
    api.observe(server);
    if (!options.health_listen.empty()) {
      health = std::make_unique<HttpServer>(loop, health_config(options), api.health_handlers());
    }
    watch = loop.every(PoolLinks::kWatchPeriod, [this] { links.watch(); });
    report = loop.every(kReportPeriod, [this] {
      const std::string refused = refusals.update(server.traffic());
      if (!refused.empty()) log_warning("in the last second: {}", refused);
    });
  }

  // In order of use: each knows those above.
  PoolRegistry registry;
  PoolLinks links;
  Admissions::CallPool call_pool;
  Admissions admissions;
  HeldSequences held;
  Api api;
  HttpServer server;
  std::unique_ptr<HttpServer> health;  // null: none
  RefusalLog refusals;
  std::unique_ptr<EventLoop::Timer> watch, report;
};

Control::Control(EventLoop& loop, const ControlOptions& options) {
  validate(options);
  impl_ = std::make_unique<Impl>(loop, options);
}

Control::~Control() = default;

const std::string& Control::address() const noexcept {
  return impl_->server.address();
}

const std::string& Control::health_address() const noexcept {
  static const std::string kNone;
  return impl_->health != nullptr ? impl_->health->address() : kNone;
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
