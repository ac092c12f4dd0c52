#include "comm/ucx/ucx_routes.h"

#include <algorithm>

namespace tributary::ucx {
namespace {

/// Longer than both sides of a connection take to notice its end when a machine has disappeared
/// (front_door.cc).
constexpr std::chrono::seconds kMaxIdle{30};

}  // namespace

Route& Routes::use(std::span<const std::byte> address) {
  std::string key(reinterpret_cast<const char*>(address.data()), address.size());
  if (const auto found = by_address_.find(key); found != by_address_.end()) {
    ++found->second->users;
    return *found->second;
  }
  auto route = std::make_unique<Route>();
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.address = reinterpret_cast<const ucp_address_t*>(key.data());
  params.err_mode = shared_memory_ ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = route.get();
  params.err_handler.cb = [](void* arg, ucp_ep_h /*endpoint*/, ucs_status_t status) {
    auto* failed = static_cast<Route*>(arg);
    failed->owner->failed_.emplace_back(failed, status);
  };
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &route->endpoint);
  if (status != UCS_OK) {
    fail(ErrorCode::kUnavailable, "UCX cannot reach it: {}", ucs_status_string(status));
  }
  route->owner = this;
  route->users = 1;
  route->address = key;
  Route& result = *route;
  by_address_[std::move(key)] = &result;
  all_[&result] = std::move(route);
  return result;
}

void Routes::release(Route& route, Clock::time_point now) {
  --route.users;
  route.idle_since = now;
}

void Routes::close(Route& route) {
  if (std::exchange(route.closing, true)) return;
  by_address_.erase(route.address);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // By force: with a peer that is gone or does not read, an orderly close would never end. UCX can
  // do this only if it detects failures.
  param.flags = shared_memory_ ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
  param.user_data = &route;
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* arg) {
    ucp_request_free(request);
    auto* closed = static_cast<Route*>(arg);
    closed->owner->closed_.push_back(closed);
  };
  if (!UCS_PTR_IS_PTR(ucp_ep_close_nbx(route.endpoint, &param))) closed_.push_back(&route);
}

void Routes::close_idle(Clock::time_point now) {
  for (const auto& [key, route] : all_) {
    if (route->users == 0 && route->hello != Route::Hello::kSaid &&
        now - route->idle_since > kMaxIdle) {
      close(*route);
    }
  }
}

void Routes::close_all() {
  for (const auto& [key, route] : all_) {
    if (route->hello != Route::Hello::kSaid) close(*route);
  }
}

bool Routes::any_closing() const {
  return std::ranges::any_of(all_, [](const auto& entry) { return entry.second->closing; });
}

void Routes::forget(Route& route) {
  std::erase_if(failed_, [&](const auto& failed) { return failed.first == &route; });
  all_.erase(&route);
}

}  // namespace tributary::ucx
