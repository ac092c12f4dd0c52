#include "deploy/service/control/api.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/base/line_writer.h"
#include "core/base/quote.h"
#include "core/round/phases.h"
#include "deploy/service/control/bearer_auth.h"
#include "deploy/service/control/cluster_report.h"
#include "deploy/service/control/control_log.h"
#include "deploy/service/control/exporter.h"
#include "deploy/service/control/http_reply.h"
#include "deploy/service/control/request_text.h"
#include "deploy/service/control/status_page.h"

namespace tributary {

struct Api::Route {
  std::string_view method;
  std::string_view path;     // `*` stands for one segment
  std::optional<Role> role;  // who may; no value: everybody, token or not
  Handler handler;
};

namespace {

constexpr std::string_view kConnectPath = "/v1/pools/connect";

/// The segments that match the pattern's stars; no value if the path does not match.
std::optional<std::vector<std::string>> match(std::string_view pattern, std::string_view path) {
  std::vector<std::string> stars;
  while (!pattern.empty() && !path.empty()) {
    // Both begin with '/'.
    const std::string_view want = pattern.substr(1, pattern.find('/', 1) - 1);
    const std::string_view have = path.substr(1, path.find('/', 1) - 1);
    if (want == "*" && !have.empty()) {
      stars.emplace_back(have);
    } else if (want != have) {
      return std::nullopt;
    }
    pattern.remove_prefix(want.size() + 1);
    path.remove_prefix(have.size() + 1);
  }
  if (!pattern.empty() || !path.empty()) return std::nullopt;
  return stars;
}

/// A page of another site may make a browser send requests here, but cannot hide that it did.
bool is_of_another_site(const HttpRequest& request) {
  const std::string_view origin = request.header("Origin");
  if (origin.empty()) return false;
  const auto scheme = origin.find("://");
  return scheme == std::string_view::npos || origin.substr(scheme + 3) != request.header("Host");
}

HttpResponse unauthorized() {
  HttpResponse response = error_reply(
      ErrorCode::kPermissionDenied, "this needs a token of the tier: Authorization: Bearer TOKEN");
  response.headers.push_back({"WWW-Authenticate", "Bearer realm=\"tributary\""});
  return response;
}

}  // namespace

Api::Api(Config config, const Clock& clock, PoolRegistry& registry, Admissions& admissions,
         HeldSequences& held, PoolLinks& links)
    : config_(std::move(config)),
      clock_(clock),
      registry_(registry),
      admissions_(admissions),
      held_(held),
      links_(links),
      start_(clock.now()) {}

HttpHandlers Api::handlers() {
  return {
      [this](const HttpRequest& request, const HttpRespond& respond) { handle(request, respond); },
      [this](const HttpRequest& request) { return may_upgrade(request); },
      [this](const HttpRequest&, std::shared_ptr<WebSocket> socket) {
        links_.accept(std::move(socket));
      },
      [this](const HttpRequest& request) {
        return config_.tokens.any() && config_.tokens.knows(request.header("Authorization"));
      }};
}

HttpHandlers Api::health_handlers() {
  return {[this](const HttpRequest& request, const HttpRespond& respond) {
            if (request.method == "GET" && request.path == "/healthz") {
              return get_health(request, {}, respond);
            }
            if (request.method == "GET" && request.path == "/readyz") {
              return get_ready(request, {}, respond);
            }
            respond(error_reply(ErrorCode::kNotFound, "this answers /healthz and /readyz alone"));
          },
          {},
          {}};
}

const std::vector<Api::Route>& Api::routes() {
  static const std::vector<Route> kRoutes{
      {"GET", "/", {}, &Api::get_page},
      {"GET", "/healthz", {}, &Api::get_health},
      {"GET", "/readyz", {}, &Api::get_ready},
      {"GET", "/metrics", Role::kOperator, &Api::get_metrics},
      {"GET", "/v1/cluster", Role::kOperator, &Api::get_cluster},
      {"POST", "/v1/sequences", Role::kClient, &Api::post_sequence},
      {"GET", "/v1/sequences/*", Role::kClient, &Api::get_sequence},
      {"DELETE", "/v1/sequences/*", Role::kClient, &Api::delete_sequence},
      {"GET", "/v1/workers", Role::kClient, &Api::get_workers},
      {"DELETE", "/v1/pools/*", Role::kOperator, &Api::delete_pool},
      {"POST", "/v1/pools/*/drain", Role::kOperator, &Api::drain<true>},
      {"POST", "/v1/pools/*/resume", Role::kOperator, &Api::drain<false>},
      {"POST", "/v1/pools/*/workers/*/drain", Role::kOperator, &Api::drain_worker<true>},
      {"POST", "/v1/pools/*/workers/*/resume", Role::kOperator, &Api::drain_worker<false>},
      {"GET", kConnectPath, Role::kPool, &Api::get_connect},
  };
  return kRoutes;
}

std::optional<HttpResponse> Api::refusal_for(const HttpRequest& request, Role role) const {
  const std::string_view shown = request.header("Authorization");
  if (config_.tokens.permits(shown, role)) return std::nullopt;
  if (!config_.tokens.knows(shown)) return unauthorized();
  return error_reply(403, ErrorCode::kPermissionDenied,
                     fmt::format("{} {} needs the {}'s token: this one is of another role",
                                 request.method, quote(request.path), role_name(role)));
}

std::optional<HttpResponse> Api::misdirected(const HttpRequest& request) const {
  if (config_.tokens.any() || is_local_host(request.header("Host"))) return std::nullopt;
  return error_reply(421, ErrorCode::kPermissionDenied,
                     fmt::format("Host {}: without a token this answers as localhost alone",
                                 quote(request.header("Host"))));
}

void Api::handle(const HttpRequest& request, const HttpRespond& reply) {
  if (auto refusal = misdirected(request)) return reply(*std::move(refusal));
  const Route* chosen = nullptr;
  Arguments arguments;
  std::string allowed;
  for (const Route& route : routes()) {
    auto stars = match(route.path, request.path);
    if (!stars) continue;
    allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", route.method);
    if (route.method != request.method) continue;
    chosen = &route;
    arguments = *std::move(stars);
  }
  if (chosen == nullptr && !config_.tokens.knows(request.header("Authorization"))) {
    return reply(unauthorized());
  }
  if (chosen != nullptr && chosen->role) {
    if (auto refusal = refusal_for(request, *chosen->role)) return reply(*std::move(refusal));
  }
  if (request.method != "GET" && is_of_another_site(request)) {
    return reply(error_reply(403, ErrorCode::kPermissionDenied, "a page of another site asks"));
  }
  if (allowed.empty()) {
    return reply(error_reply(ErrorCode::kNotFound, fmt::format("no {} here", quote(request.path))));
  }
  if (chosen == nullptr) {
    HttpResponse response = error_reply(
        405, ErrorCode::kUnsupported,
        fmt::format("{} takes {}, not {}", quote(request.path), allowed, quote(request.method)));
    response.headers.push_back({"Allow", allowed});
    return reply(std::move(response));
  }
  try {
    (this->*chosen->handler)(request, arguments, reply);
  } catch (const Error& error) {
    reply(error_reply(error.code(), error.what()));
  }
}

std::optional<HttpResponse> Api::may_upgrade(const HttpRequest& request) const {
  if (auto refusal = misdirected(request)) return refusal;
  if (auto refusal = refusal_for(request, Role::kPool)) return refusal;
  if (request.path != kConnectPath) {
    return error_reply(ErrorCode::kNotFound, "WebSockets are for /v1/pools/connect");
  }
  if (is_of_another_site(request)) {
    return error_reply(403, ErrorCode::kPermissionDenied, "a page of another site asks");
  }
  return std::nullopt;
}

void Api::get_page(const HttpRequest& /*request*/, const Arguments& /*arguments*/,
                   const HttpRespond& respond) {
  HttpResponse response;
  response.content_type = "text/html; charset=utf-8";
  static const std::string kPage = [] {
    constexpr std::string_view kPhasesHere = "@PHASES@";
    std::string page(status_page());
    return page.replace(page.find(kPhasesHere), kPhasesHere.size(),
                        nlohmann::json(kPhaseNames).dump());
  }();
  response.body = kPage;
  response.headers = {{"Content-Security-Policy",
                       "default-src 'none'; script-src 'unsafe-inline'; style-src "
                       "'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
                       "form-action 'none'; frame-ancestors 'none'"},
                      {"X-Content-Type-Options", "nosniff"}};
  respond(std::move(response));
}

void Api::get_health(const HttpRequest& /*request*/, const Arguments& /*arguments*/,
                     const HttpRespond& respond) {
  respond(json_reply(200, R"({"alive":true})"));
}

void Api::get_ready(const HttpRequest& /*request*/, const Arguments& /*arguments*/,
                    const HttpRespond& respond) {
  respond(any_serving(registry_) ? json_reply(200, R"({"ready":true})")
                                 : error_reply(ErrorCode::kUnavailable, "no pool serves"));
}

TierView Api::view() const {
  static const HttpTraffic kNone;
  return {registry_,
          admissions_,
          links_.registered(),
          links_.refused(),
          server_ != nullptr ? server_->traffic() : kNone,
          server_ != nullptr ? server_->connections() : 0,
          scrape_seconds_,
          start_,
          clock_.now(),
          config_.version,
          stderr_lines().dropped()};
}

void Api::get_metrics(const HttpRequest& /*request*/, const Arguments& /*arguments*/,
                      const HttpRespond& respond) {
  const Time begin = clock_.now();
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_text(view());
  scrape_seconds_ = seconds_between(begin, clock_.now());
  respond(std::move(response));
}

void Api::get_cluster(const HttpRequest& /*request*/, const Arguments& /*arguments*/,
                      const HttpRespond& respond) {
  respond(json_reply(200, cluster_json(view())));
}

void Api::post_sequence(const HttpRequest& request, const Arguments& /*arguments*/,
                        const HttpRespond& respond) {
  if (!is_json_content(request.header("Content-Type"))) {
    return respond(error_reply(415, ErrorCode::kUnsupported,
                               fmt::format("a body of type {}; this takes application/json",
                                           quote(request.header("Content-Type")))));
  }
  const AdmitRequest admission = parse_admit_request(
      request.body, request.header("Idempotency-Key"), request.header("Idempotency-Secret"));
  admissions_.admit(admission, [respond](const AdmissionResult& result) {
    if (!result.status.ok()) {
      HttpResponse response = error_reply(result.status.code(), result.status.message());
      if (result.retry_after_s > 0) {
        response.headers.push_back({"Retry-After", std::to_string(result.retry_after_s)});
      }
      return respond(std::move(response));
    }
    HttpResponse response = json_reply(201, to_json(result.sequence));
    response.headers.push_back({"Location", fmt::format("/v1/sequences/{}", result.sequence.id)});
    respond(std::move(response));
  });
}

void Api::get_sequence(const HttpRequest& /*request*/, const Arguments& arguments,
                       const HttpRespond& respond) {
  held_.query(parse_id(arguments[0]), [respond](const Status& status, const SequenceHandle& found) {
    if (!status.ok()) return respond(error_reply(status.code(), status.message()));
    // Ids can be guessed: who asks by one gets no key to its rows. Who admitted it has the token.
    SequenceHandle shown = found;
    shown.token = {};
    respond(json_reply(200, to_json(shown)));
  });
}

void Api::delete_sequence(const HttpRequest& request, const Arguments& arguments,
                          const HttpRespond& respond) {
  const SequenceId id = parse_id(arguments[0]);
  held_.free(id, parse_pool_query(request.query), [respond](const Status& status) {
    respond(status.ok() ? json_reply(200, "{}") : error_reply(status.code(), status.message()));
  });
}

void Api::get_workers(const HttpRequest& /*request*/, const Arguments& /*arguments*/,
                      const HttpRespond& respond) {
  respond(json_reply(200, workers_to_json(worker_addresses(registry_))));
}

const Pool& Api::living_pool(const HttpRequest& request, const std::string& name) const {
  require_empty_body(request.body);
  const Pool* pool = registry_.find(name);
  if (pool == nullptr) fail(ErrorCode::kNotFound, "pool {}: not known", quote(name));
  if (pool->state == PoolState::kLost) {
    fail(ErrorCode::kPoolLost, "pool {} is lost: {}", name, pool->lost_because);
  }
  return *pool;
}

void Api::delete_pool(const HttpRequest& request, const Arguments& arguments,
                      const HttpRespond& respond) {
  const std::string& name = arguments[0];
  require_empty_body(request.body);
  const Pool* pool = registry_.find(name);
  if (pool == nullptr) fail(ErrorCode::kNotFound, "pool {}: not known", quote(name));
  if (pool->state != PoolState::kLost) {
    fail(ErrorCode::kFailedPrecondition,
         "pool {} is {}: end it (SIGTERM), and it is forgotten once it holds no sequence", name,
         pool_state_name(pool->state));
  }
  if (!pool->sequences.empty()) {
    fail(ErrorCode::kFailedPrecondition, "pool {} is lost from sight: its {} sequences wait for it",
         name, pool->sequences.size());
  }
  registry_.forget(name, clock_.now());
  log_info("pool {} is forgotten: an operator asked for it", name);
  respond(json_reply(200, "{}"));
}

template <bool kDraining>
void Api::drain_worker(const HttpRequest& request, const Arguments& arguments,
                       const HttpRespond& respond) {
  const std::string& pool = arguments[0];
  const std::size_t workers = living_pool(request, pool).about.workers.size();
  const int rank = parse_rank(arguments[1]);
  if (std::cmp_greater_equal(rank, workers)) {
    fail(ErrorCode::kNotFound, "pool {} has no worker {}: it has {}", pool, rank, workers);
  }
  links_.call(pool, DrainWorker{0, rank, kDraining}, clock_.now() + config_.timeout,
              [pool, rank, respond](const PoolReply& reply) {
                if (reply.code != ErrorCode::kOk) {
                  return respond(error_reply(reply.code, reply.message));
                }
                log_info("worker {} of pool {} {}", rank, pool,
                         kDraining ? "is being emptied" : "takes rows again");
                respond(json_reply(200, fmt::format(R"({{"name":"{}","worker":{},"draining":{}}})",
                                                    pool, rank, kDraining)));
              });
}

template <bool kDraining>
void Api::drain(const HttpRequest& request, const Arguments& arguments,
                const HttpRespond& respond) {
  const std::string& pool = arguments[0];
  (void)living_pool(request, pool);
  links_.call(pool, SetDraining{0, kDraining}, clock_.now() + config_.timeout,
              [this, pool, respond](const PoolReply& reply) {
                if (reply.code != ErrorCode::kOk) {
                  return respond(error_reply(reply.code, reply.message));
                }
                registry_.set_draining(pool, kDraining, clock_.now());
                log_info("pool {} {}", pool, kDraining ? "drains" : "serves again");
                respond(json_reply(200, fmt::format(R"({{"name":"{}","state":"{}"}})", pool,
                                                    pool_state_name(registry_.find(pool)->state))));
              });
}

void Api::get_connect(const HttpRequest& /*request*/, const Arguments& /*arguments*/,
                      const HttpRespond& respond) {
  HttpResponse response = error_reply(426, ErrorCode::kUnsupported, "this is a WebSocket");
  response.headers.push_back({"Upgrade", "websocket"});
  respond(std::move(response));
}

}  // namespace tributary
