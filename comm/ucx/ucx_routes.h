// UCX's endpoints: one to each other worker, whichever side connects and however often.
#pragma once

#include <ucp/api/ucp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/ucx/ucx_support.h"
#include "core/base/deadline.h"

namespace tributary::ucx {

class Routes;

struct Route {
  Routes* owner = nullptr;
  ucp_ep_h endpoint = nullptr;
  std::string address;
  std::size_t users = 0;
  Time idle_since;
  enum class Hello : std::uint8_t { kNone, kSaid, kAnswered } hello = Hello::kNone;  // the first
  bool closing = false;
};

/// Why one endpoint for all connections between two workers: UCX pairs the n-th endpoint of one
/// side with the n-th of the other, and the end of one is the end of both. Two sides that set up
/// several connections at once, or abandon one half-way, would count differently. For the same
/// reason an unused route is kept for a while: the other side may still rely on it.
///
/// Which side asks: before payloads can be sent, UCX's endpoints exchange a request and a reply.
/// UCX 1.13.1 aborts the process (an assertion in ucp_request.c, line 684) when a socket dies under
/// a reply that waits to be sent. A reply waits if the request arrives before there is an endpoint:
/// UCX makes one, whose socket waits for the other side's acknowledgement. So the hello is sent
/// without a request. The accepting side then makes its endpoint and asks; a waiting request does
/// no harm. It reaches the connecting side's endpoint, which is connected and has nothing queued
/// before the reply. For this a route is kept until its hello is answered.
class Routes {
 public:
  using Clock = std::chrono::steady_clock;

  /// With `shared_memory` UCX does not notice failures.
  Routes(const Worker& worker, bool shared_memory)
      : worker_(worker), shared_memory_(shared_memory) {}

  /// Throws kUnavailable when UCX refuses the address.
  [[nodiscard]] Route& use(std::span<const std::byte> address);
  void release(Route& route, Clock::time_point now);
  /// Starts to close the route, by force if UCX can. Everything in flight has ended when the route
  /// is in take_closed().
  void close(Route& route);
  void close_idle(Clock::time_point now);
  /// Skips routes whose hello has not been answered: they end with the worker.
  void close_all();

  // Both return the reports of UCX since the last call.
  [[nodiscard]] std::vector<std::pair<Route*, ucs_status_t>> take_failed() {
    return std::exchange(failed_, {});
  }
  [[nodiscard]] std::vector<Route*> take_closed() { return std::exchange(closed_, {}); }
  /// Removes a closed route that nobody uses.
  void forget(Route& route);
  [[nodiscard]] bool any_closing() const;

 private:
  const Worker& worker_;
  const bool shared_memory_;
  std::unordered_map<const Route*, std::unique_ptr<Route>> all_;
  std::map<std::string, Route*> by_address_;  // routes that are not closing
  std::vector<std::pair<Route*, ucs_status_t>> failed_;
  std::vector<Route*> closed_;
};

}  // namespace tributary::ucx
