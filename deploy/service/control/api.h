// The control plane's HTTP interface: the effect of each request, and the roles that may send it.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/http/http_server.h"
#include "deploy/service/control/admissions.h"
#include "deploy/service/control/held_sequences.h"
#include "deploy/service/control/pool_links.h"
#include "deploy/service/control/pool_registry.h"
#include "deploy/service/control/roles.h"
#include "deploy/service/control/tier_view.h"

namespace tributary {

class Api {
 public:
  struct Config {
    RoleTokens tokens;
    std::chrono::milliseconds timeout{10'000};  // for a pool to answer
    std::string version;
  };
  Api(Config config, const Clock& clock, PoolRegistry& registry, Admissions& admissions,
      HeldSequences& held, PoolLinks& links);

  /// For the server, which this object outlives.
  [[nodiscard]] HttpHandlers handlers();
  /// `/healthz` and `/readyz` only, for their own server.
  [[nodiscard]] HttpHandlers health_handlers();
  /// Sets the server of handlers(), for the metrics.
  void observe(const HttpServer& server) { server_ = &server; }

 private:
  struct Route;
  using Arguments = std::vector<std::string>;  // what stood for the stars of a route
  using Handler = void (Api::*)(const HttpRequest&, const Arguments&, const HttpRespond&);

  static const std::vector<Route>& routes();
  void handle(const HttpRequest& request, const HttpRespond& reply);
  [[nodiscard]] std::optional<HttpResponse> may_upgrade(const HttpRequest& request) const;
  /// The refusal for a request whose sender may not act in this role; no value if it may.
  [[nodiscard]] std::optional<HttpResponse> refusal_for(const HttpRequest& request,
                                                        Role role) const;
  /// The refusal, without a token, of a request under a name that is not this machine's; otherwise
  /// no value.
  [[nodiscard]] std::optional<HttpResponse> misdirected(const HttpRequest& request) const;

  void get_page(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void get_health(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void get_ready(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void get_metrics(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void get_cluster(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void post_sequence(const HttpRequest& request, const Arguments&, const HttpRespond& respond);
  void get_sequence(const HttpRequest&, const Arguments& arguments, const HttpRespond& respond);
  void delete_sequence(const HttpRequest&, const Arguments& arguments, const HttpRespond& respond);
  void get_workers(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void get_connect(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  /// Of a lost pool that does not come back.
  void delete_pool(const HttpRequest& request, const Arguments& arguments,
                   const HttpRespond& respond);
  template <bool kDraining>  // or back again
  void drain(const HttpRequest& request, const Arguments& arguments, const HttpRespond& respond);
  template <bool kDraining>
  void drain_worker(const HttpRequest& request, const Arguments& arguments,
                    const HttpRespond& respond);
  /// The pool that a request without a body names. Throws kNotFound, kPoolLost, kMalformedInput.
  [[nodiscard]] const Pool& living_pool(const HttpRequest& request, const std::string& name) const;
  [[nodiscard]] TierView view() const;

  Config config_;
  const Clock& clock_;
  PoolRegistry& registry_;
  Admissions& admissions_;
  HeldSequences& held_;
  PoolLinks& links_;
  const HttpServer* server_ = nullptr;  // until observe()
  Time start_;
  double scrape_seconds_ = 0;
};

}  // namespace tributary
