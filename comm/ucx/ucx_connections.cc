// How peers come and go.
#include "comm/ucx/ucx_connections.h"

#include <algorithm>
#include <utility>

namespace tributary::ucx {
namespace {

/// How long messages that were sent before disconnect() have to leave this process.
constexpr std::chrono::seconds kFlushTimeout{1};
/// How long shut_down() waits for UCX to let go. Closing by force takes well under a millisecond;
/// only shared memory with a dead peer behind it can take forever.
constexpr std::chrono::seconds kShutdownTimeout{5};
/// Connection requests that UCX hands over in one go and that are not answered yet.
constexpr std::size_t kMaxRequests = 1024;

Status closing_status(const std::string& name) {
  return {ErrorCode::kUnavailable, fmt::format("connection to {}: closed on this side", name)};
}

}  // namespace

Connections::Connections(const TransportConfig& config, TransportHandler& handler)
    : config_(config), handler_(handler), worker_(config.shared_memory) {
  if (config.max_header_bytes + sizeof(std::uint16_t) > worker_.max_header_bytes()) {
    fail(ErrorCode::kUnsupported, "max_header_bytes is {}: UCX carries at most {} here",
         config.max_header_bytes, worker_.max_header_bytes() - sizeof(std::uint16_t));
  }
  set_handlers();
  if (!config.listen.empty()) listen();
}

Connections::~Connections() {
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
}

void Connections::listen() {
  const SocketAddress address = parse_address(config_.listen);
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address.storage);
  params.sockaddr.addrlen = address.size;
  params.conn_handler.arg = this;
  params.conn_handler.cb = [](ucp_conn_request_h request, void* self) {
    static_cast<Connections*>(self)->requests_.push_back(request);
  };
  check(fmt::format("listen on '{}'", config_.listen),
        ucp_listener_create(worker_.get(), &params, &listener_));

  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  const ucs_status_t status = ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK) ucp_listener_destroy(listener_);
  check("UCX: address of the listener", status);
  address_ = format_address(attributes.sockaddr);
}

Connections::Peer* Connections::find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

Connections::Peer& Connections::add_peer(PeerId id, std::string name, bool accepted) {
  auto peer = std::make_unique<Peer>();
  peer->owner = this;
  peer->id = id;
  peer->name = std::move(name);
  peer->accepted = accepted;
  return *(peers_[id] = std::move(peer));
}

/// `params` says to whom. False when UCX refuses at once.
bool Connections::open_endpoint(Peer& peer, ucp_ep_params_t params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.err_mode = config_.shared_memory ? UCP_ERR_HANDLING_MODE_NONE : UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.arg = &peer;
  params.err_handler.cb = [](void* arg, ucp_ep_h /*endpoint*/, ucs_status_t status) {
    const auto* failed = static_cast<const Peer*>(arg);
    failed->owner->failed_.emplace_back(failed->id, status);
  };
  const ucs_status_t status = ucp_ep_create(worker_.get(), &params, &peer.endpoint);
  if (status != UCS_OK) {
    peer.endpoint = nullptr;
    failed_.emplace_back(peer.id, status);
    return false;
  }
  by_endpoint_[peer.endpoint] = &peer;
  return true;
}

void Connections::connect(PeerId id, const SocketAddress& address) {
  Peer& peer = add_peer(id, format_address(address.storage), /*accepted=*/false);
  peer.announced = true;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr.addr = reinterpret_cast<const sockaddr*>(&address.storage);
  params.sockaddr.addrlen = address.size;
  if (open_endpoint(peer, params)) {
    connecting_.emplace_back(Clock::now() + config_.connect_timeout, id);
  }
}

void Connections::accept(ucp_conn_request_h request) {
  if (accepted_ >= config_.max_connections || requests_.size() > kMaxRequests) {
    static_cast<void>(ucp_listener_reject(listener_, request));
    return;
  }
  ucp_conn_request_attr_t attributes{};
  attributes.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
  const bool named = ucp_conn_request_query(request, &attributes) == UCS_OK;
  Peer& peer =
      add_peer(next_id(), named ? format_address(attributes.client_address) : "unknown address",
               /*accepted=*/true);
  ++accepted_;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  peer.welcomed = true;
  if (open_endpoint(peer, params)) send_welcome(peer);
}

bool Connections::accept_requests() {
  if (requests_.empty()) return false;
  while (!requests_.empty()) {
    ucp_conn_request_h request = requests_.front();
    requests_.pop_front();
    accept(request);
  }
  return true;
}

void Connections::disconnect(PeerId id) {
  Peer* peer = find(id);
  if (peer == nullptr) return;
  peer->announced = false;
  if (peer->state != State::kOpen) return;
  // Nothing has been sent yet, or closing will flush by itself.
  if (peer->endpoint == nullptr || !peer->welcomed || config_.shared_memory) {
    end(*peer, closing_status(peer->name));
    return;
  }
  peer->reason = closing_status(peer->name);
  peer->state = State::kFlushing;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* self) {
    const PeerId flushed = *static_cast<Worker::RequestTag*>(request);
    ucp_request_free(request);
    // The failure of a peer that is not open any more only ends its flushing.
    static_cast<Connections*>(self)->failed_.emplace_back(flushed, UCS_OK);
  };
  ucs_status_ptr_t request = ucp_ep_flush_nbx(peer->endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) {
    *static_cast<Worker::RequestTag*>(request) = id;
    flushing_.emplace_back(Clock::now() + kFlushTimeout, id);
  } else {
    close(*peer);
  }
}

/// Ends an open or flushing peer; the first reason stays.
void Connections::end(Peer& peer, Status reason) {
  if (peer.state == State::kClosing) return;
  if (peer.reason.ok()) peer.reason = std::move(reason);
  close(peer);
}

void Connections::close(Peer& peer) {
  peer.state = State::kClosing;
  if (peer.endpoint == nullptr) return finish(peer);
  by_endpoint_.erase(peer.endpoint);
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  // By force: a peer that is gone or does not read would never let an orderly close end. UCX offers
  // it only where it notices failures.
  param.flags = config_.shared_memory ? 0 : UCP_EP_CLOSE_FLAG_FORCE;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* self) {
    auto* connections = static_cast<Connections*>(self);
    Peer* closed = connections->find(*static_cast<Worker::RequestTag*>(request));
    ucp_request_free(request);
    if (closed != nullptr) connections->finish(*closed);
  };
  ucs_status_ptr_t request = ucp_ep_close_nbx(peer.endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) {
    *static_cast<Worker::RequestTag*>(request) = peer.id;
  } else {
    finish(peer);
  }
}

/// UCX has let go of the peer.
void Connections::finish(Peer& peer) {
  finish_messages_of(peer);
  if (peer.accepted) --accepted_;
  if (peer.announced) calls_.push_back({.function = {}, .status = peer.reason, .peer = peer.id});
  peers_.erase(peer.id);
}

bool Connections::end_failed() {
  if (failed_.empty()) return false;
  for (const auto& [id, status] : std::exchange(failed_, {})) {
    Peer* peer = find(id);
    if (peer != nullptr) end(*peer, to_status(fmt::format("connection to {}", peer->name), status));
  }
  return true;
}

bool Connections::run_calls() {
  if (calls_.empty()) return false;
  for (Call& call : std::exchange(calls_, {})) {
    if (call.function) {
      call.function(call.status);
    } else if (call.peer != 0) {
      handler_.on_disconnect(call.peer, call.status);
    }
  }
  return true;
}

void Connections::call_later(const std::function<void(const Status&)>& function,
                             const Status& status) {
  if (function) calls_.push_back({.function = function, .status = status, .peer = 0});
}

bool Connections::progress() {
  bool busy = ucp_worker_progress(worker_.get()) != 0;
  busy |= accept_requests();
  busy |= end_failed();
  busy |= run_calls();
  return busy;
}

void Connections::check_deadlines(Clock::time_point now) {
  for (; !connecting_.empty(); connecting_.pop_front()) {
    Peer* peer = find(connecting_.front().second);
    if (peer == nullptr || peer->welcomed || peer->state != State::kOpen) continue;
    if (connecting_.front().first > now) break;
    end(*peer,
        {ErrorCode::kDeadlineExceeded, fmt::format("connection to {}: none within {} ms",
                                                   peer->name, config_.connect_timeout.count())});
  }
  for (; !flushing_.empty() && flushing_.front().first <= now; flushing_.pop_front()) {
    Peer* peer = find(flushing_.front().second);
    if (peer != nullptr) end(*peer, {});
  }
  // Those of closing peers are the first until UCX has let go of them.
  for (auto send = sends_.begin(); send != sends_.end() && send->second.deadline <= now;) {
    const PeerId id = send->second.peer;
    ++send;  // closing removes the one before
    Peer* peer = find(id);
    if (peer == nullptr || peer->state == State::kClosing) continue;
    const auto resume = send == sends_.end() ? 0 : send->first;
    end(*peer,
        {ErrorCode::kDeadlineExceeded, fmt::format("connection to {}: it has not read for {} ms",
                                                   peer->name, config_.send_timeout.count())});
    send = resume == 0 ? sends_.end() : sends_.lower_bound(resume);
  }
}

Connections::Clock::time_point Connections::next_deadline() const {
  auto deadline = Clock::time_point::max();
  if (!connecting_.empty()) deadline = std::min(deadline, connecting_.front().first);
  if (!flushing_.empty()) deadline = std::min(deadline, flushing_.front().first);
  if (!sends_.empty()) deadline = std::min(deadline, sends_.begin()->second.deadline);
  return deadline;
}

void Connections::shut_down() {
  for (ucp_conn_request_h request : std::exchange(requests_, {})) {
    static_cast<void>(ucp_listener_reject(listener_, request));
  }
  if (listener_ != nullptr) ucp_listener_destroy(std::exchange(listener_, nullptr));
  std::vector<PeerId> ids;
  for (const auto& [id, peer] : peers_) ids.push_back(id);
  for (const PeerId id : ids) {
    Peer& peer = *find(id);
    peer.announced = false;
    end(peer, closing_status(peer.name));
  }
  const auto deadline = Clock::now() + kShutdownTimeout;
  while (!peers_.empty() && Clock::now() < deadline) {
    static_cast<void>(ucp_worker_progress(worker_.get()));
  }
  while (!peers_.empty()) finish(*peers_.begin()->second);
  for (Call& call : calls_) call.peer = 0;  // no handler any more
  while (run_calls()) {
  }
}

}  // namespace tributary::ucx
