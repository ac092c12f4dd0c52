// The control plane's HTTP interface: which request does what, and who may send it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/http/http_server.h"
#include "deploy/control/admissions.h"
#include "deploy/control/pool_links.h"
#include "deploy/control/pool_registry.h"
#include "deploy/control/tier_view.h"

namespace tributary {

class Api {
 public:
  struct Config {
    std::string token;                          // empty: everybody may do everything
    std::chrono::milliseconds timeout{10'000};  // for a pool to answer
    std::string version;
  };
  Api(Config config, PoolRegistry& registry, Admissions& admissions, PoolLinks& links);

  /// For the server, which this object outlives.
  [[nodiscard]] HttpHandlers handlers();
  /// How many connections the server has, for the metrics.
  void count_connections(std::function<int()> connections) {
    connections_ = std::move(connections);
  }

 private:
  struct Route;
  using Arguments = std::vector<std::string>;  // what stood for the stars of a route
  using Handler = void (Api::*)(const HttpRequest&, const Arguments&, const HttpRespond&);

  static const std::vector<Route>& routes();
  void handle(const HttpRequest& request, HttpRespond respond);
  [[nodiscard]] std::optional<HttpResponse> may_upgrade(const HttpRequest& request) const;
  [[nodiscard]] bool is_permitted(const HttpRequest& request) const;

  void get_page(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void get_health(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void get_ready(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void get_metrics(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void get_cluster(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void post_sequence(const HttpRequest& request, const Arguments&, const HttpRespond& respond);
  void get_sequence(const HttpRequest&, const Arguments& arguments, const HttpRespond& respond);
  void delete_sequence(const HttpRequest&, const Arguments& arguments, const HttpRespond& respond);
  void post_drain(const HttpRequest& request, const Arguments& arguments,
                  const HttpRespond& respond);
  void post_resume(const HttpRequest& request, const Arguments& arguments,
                   const HttpRespond& respond);
  void get_connect(const HttpRequest&, const Arguments&, const HttpRespond& respond);
  void set_draining(const HttpRequest& request, const std::string& pool, bool draining,
                    const HttpRespond& respond);
  /// kNotFound; for a sequence of an earlier control plane kUnavailable at first.
  [[noreturn]] void fail_unknown(SequenceId id) const;
  [[nodiscard]] TierView view() const;

  Config config_;
  PoolRegistry& registry_;
  Admissions& admissions_;
  PoolLinks& links_;
  std::function<int()> connections_;
  ControlClock::time_point start_ = ControlClock::now();
  std::map<int, std::uint64_t> http_requests_;
  double scrape_seconds_ = 0;
};

}  // namespace tributary
