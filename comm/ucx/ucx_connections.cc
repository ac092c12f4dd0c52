// Adds and removes peers.
#include "comm/ucx/ucx_connections.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tributary::ucx {
namespace {

/// The time in which messages sent before disconnect() must leave this process.
constexpr std::chrono::seconds kFlushTimeout{1};
/// The time that shut_down() waits for UCX. A forced close takes well under a millisecond; only
/// shared memory with a dead peer can take forever.
constexpr std::chrono::seconds kShutdownTimeout{5};
/// The front door is checked when it is readable after a sleep, and this often while there is no
/// time to sleep.
constexpr std::chrono::milliseconds kLookEvery{1};
/// A peer may send messages before it closes its socket, over another socket. They are read until
/// none arrives for a moment, and for this long at most.
constexpr std::chrono::milliseconds kMaxDrain{100};
/// If messages to the peer are in flight, UCX has to notice its end too, or complete them. The
/// route is abandoned only if it does neither: UCX 1.13 keeps the socket of an endpoint that was
/// closed by force, and if the other side closes that socket while data waits to be written,
/// uct_tcp_iface_handle_events uses memory that it has freed.
constexpr std::chrono::seconds kMaxSilence{1};
/// Limit of incoming payloads, those that failed lately included: two payloads of 4 MiB for each of
/// 16 senders.
constexpr std::size_t kMaxBounceBytes = std::size_t{128} << 20;
/// How often unused routes are searched for.
constexpr std::chrono::seconds kIdleCheckEvery{1};

Status closing_status(const std::string& name) {
  return {ErrorCode::kUnavailable, fmt::format("connection to {}: closed on this side", name)};
}

/// The devices that UCX may use, with a TCP port on each: that of our address, and faster ones.
std::string devices_for(const TransportConfig& config) {
  if (config.listen.empty()) return {};
  const SocketAddress address = parse_address(config.listen);
  std::string device = device_of(address);
  if (device.empty() || is_loopback(address)) return device;
  const std::string rdma = rdma_ports();
  return rdma.empty() ? device : fmt::format("{},{}", device, rdma);
}

}  // namespace

Connections::Connections(const TransportConfig& config, TransportHandler& handler,
                         std::atomic<PeerId>& next_id)
    : config_(config),
      handler_(handler),
      buffers_(kMaxBounceBytes),
      worker_(config.shared_memory, devices_for(config)),
      routes_(worker_, config.shared_memory),
      door_(config, worker_.address(), next_id, handler),
      accepted_(static_cast<std::size_t>(config.max_connections),
                static_cast<std::size_t>(config.max_connections_of_id)) {
  if (config.max_header_bytes + kMessagePrefixBytes > worker_.max_header_bytes()) {
    fail(ErrorCode::kUnsupported, "max_header_bytes is {}: UCX carries at most {} here",
         config.max_header_bytes, worker_.max_header_bytes() - kMessagePrefixBytes);
  }
  set_handlers();
}

Connections::Peer* Connections::find(PeerId id) {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.get();
}

Connections::Peer* Connections::open_peer(std::uint64_t label) {
  const auto found = by_label_.find(label);
  return found == by_label_.end() || found->second->state != State::kOpen ? nullptr : found->second;
}

Connections::Peer& Connections::add_peer(PeerId id, std::string name, bool accepted) {
  auto peer = std::make_unique<Peer>();
  peer->id = id;
  peer->name = std::move(name);
  peer->accepted = accepted;
  connecting_.emplace_back(Clock::now() + config_.connect_timeout, id);
  return *(peers_[id] = std::move(peer));
}

void Connections::connect(PeerId id, const SocketAddress& address,
                          const tributary::Introduction& who) {
  add_peer(id, format_address(address.storage), /*accepted=*/false).announced = true;
  door_.connect(id, address, who);
  look_at_door_ = true;
}

bool Connections::answer_door(Clock::time_point now) {
  if (!std::exchange(look_at_door_, false) && now < next_look_) return false;
  next_look_ = now + kLookEvery;
  bool any = false;
  for (FrontDoor::Event& event : door_.progress(now)) {
    any = true;
    if (event.contact) {
      on_introduction(std::move(event));
    } else if (Peer* peer = find(event.peer); peer != nullptr) {
      if (peer->reason.ok()) peer->reason = event.gone;
      gone_.push_back({.since = now, .peer = event.peer});
    }
  }
  return any;
}

void Connections::on_introduction(FrontDoor::Event event) {
  Peer* peer = find(event.peer);
  if (event.accepted) {
    const Places::Taken place = accepted_.take(event.peer, event.who.id);
    if (!place.ok || place.gone) {
      const Status full(ErrorCode::kPoolFull, place.why);
      handler_.on_limit(TransportLimit::kPlaces, full);
      if (place.gone) door_.refuse(*place.gone, ErrorCode::kPoolFull);
      if (place.gone && find(*place.gone) != nullptr) end(*find(*place.gone), full);
    }
    if (!place.ok) return door_.refuse(event.peer, ErrorCode::kPoolFull);
    peer = &add_peer(event.peer, std::move(event.name), /*accepted=*/true);
    peer->announced = true;
  }
  if (peer == nullptr || peer->state != State::kOpen) return door_.close(event.peer);
  peer->label = event.label;
  peer->contact = std::move(*event.contact);
  by_label_[peer->label] = peer;
  handler_.on_open(peer->id, event.who);
  if (!peer->accepted) {
    if (open_route(*peer)) greeting_.push_back(peer->id);
    return;
  }
  door_.answer(peer->id);
  look_at_door_ = true;
}

bool Connections::open_route(Peer& peer) {
  try {
    peer.route = &routes_.use(peer.contact.address);
    return true;
  } catch (const Error& error) {
    end(peer, {error.code(), fmt::format("connection to {}: {}", peer.name, error.what())});
    return false;
  }
}

/// The accepting side opens its route only now. UCX finds the socket of the hello and need not
/// connect to the other side, which may be behind a firewall or gone.
bool Connections::welcome() {
  if (hellos_.empty()) return false;
  for (const PeerId id : std::exchange(hellos_, {})) {
    Peer* peer = find(id);
    if (peer == nullptr || peer->state != State::kOpen || peer->welcomed) continue;
    // Without the socket of the hello UCX would try to connect to a side that is gone. A side that
    // leaves closes the front door first.
    if (!door_.is_there(id) || !open_route(*peer)) continue;
    peer->welcomed = true;
    send_now(*peer, {}, kWelcome);
    send_held(*peer);
  }
  return true;
}

void Connections::disconnect(PeerId id) {
  Peer* peer = find(id);
  if (peer == nullptr) return;
  peer->announced = false;
  if (peer->state != State::kOpen) return;
  if (!peer->welcomed) {  // nothing has been sent to it yet
    end(*peer, closing_status(peer->name));
    return;
  }
  if (peer->reason.ok()) peer->reason = closing_status(peer->name);
  peer->state = State::kFlushing;
  finish_receives_of(*peer);
  flushing_.emplace_back(Clock::now() + kFlushTimeout, id);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.user_data = this;
  param.cb.send = [](void* request, ucs_status_t /*status*/, void* self) {
    const PeerId flushed = *static_cast<Worker::RequestTag*>(request);
    ucp_request_free(request);
    static_cast<Connections*>(self)->on_flushed(flushed);
  };
  ucs_status_ptr_t request = ucp_ep_flush_nbx(peer->route->endpoint, &param);
  if (UCS_PTR_IS_PTR(request)) {
    *static_cast<Worker::RequestTag*>(request) = id;
  } else {
    on_flushed(id);
  }
}

void Connections::on_flushed(PeerId id) {
  Peer* peer = find(id);
  if (peer == nullptr) return;
  peer->flushed = true;
  if (peer->sends == 0) failed_.emplace_back(id, Status());
}

/// Ends an open or flushing peer. The first reason is kept.
void Connections::end(Peer& peer, const Status& reason) {
  if (peer.state == State::kClosing) return;
  peer.state = State::kClosing;
  if (peer.reason.ok()) peer.reason = reason;
  by_label_.erase(peer.label);
  door_.close(peer.id);
  if (peer.sends == 0) return finish(peer);
  // UCX reads the payloads until it has released its endpoint.
  give_up(*peer.route,
          {peer.reason.code(), fmt::format("closed together with the one to {}", peer.name)});
}

/// Ends all peers that use the route.
void Connections::give_up(Route& route, const Status& reason) {
  if (route.closing) return;
  routes_.close(route);
  std::vector<PeerId> users;
  for (const auto& [id, peer] : peers_) {
    if (peer->route == &route) users.push_back(id);
  }
  for (const PeerId id : users) {
    Peer& peer = *find(id);
    end(peer, {reason.code(), fmt::format("connection to {}: {}", peer.name, reason.message())});
  }
}

/// Called when nothing is in flight to the peer any more.
void Connections::finish(Peer& peer) {
  finish_messages_of(peer);
  accepted_.leave(peer.id);
  if (peer.announced) calls_.push_back({.function = {}, .status = peer.reason, .peer = peer.id});
  if (peer.route != nullptr) routes_.release(*peer.route, Clock::now());
  peers_.erase(peer.id);
}

bool Connections::end_failed() {
  const auto failed_routes = routes_.take_failed();
  for (const auto& [route, status] : failed_routes) {
    give_up(*route, to_status("UCX", status));
  }
  const auto closed_routes = routes_.take_closed();
  for (Route* route : closed_routes) {
    std::vector<PeerId> users;
    for (const auto& [id, peer] : peers_) {
      if (peer->route == route) users.push_back(id);
    }
    for (const PeerId id : users) finish(*find(id));
    routes_.forget(*route);
  }
  const auto failed = std::exchange(failed_, {});
  for (const auto& [id, status] : failed) {
    Peer* peer = find(id);
    if (peer != nullptr) end(*peer, status);
  }
  return !failed_routes.empty() || !closed_routes.empty() || !failed.empty();
}

/// `busy`: something was read in this progress().
bool Connections::end_gone(Clock::time_point now, bool busy) {
  bool any = false;
  std::erase_if(gone_, [&](const Gone& gone) {
    Peer* peer = find(gone.peer);
    const bool wait = peer != nullptr && (peer->sends > 0 ? now < gone.since + kMaxSilence
                                                          : busy && now < gone.since + kMaxDrain);
    if (wait) return false;
    any = true;
    if (peer != nullptr) end(*peer, {});  // it keeps its own reason
    return true;
  });
  return any;
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

bool Connections::progress(Clock::time_point now) {
  bool busy = ucp_worker_progress(worker_.get()) != 0;
  busy |= end_gone(now, busy);
  busy |= end_failed();
  busy |= receive_announced();
  busy |= say_hellos();
  busy |= welcome();
  busy |= answer_door(now);
  busy |= run_calls();
  return busy;
}

void Connections::check_deadlines(Clock::time_point now) {
  for (; !connecting_.empty(); connecting_.pop_front()) {
    Peer* peer = find(connecting_.front().second);
    if (peer == nullptr || peer->welcomed || peer->state != State::kOpen) continue;
    if (connecting_.front().first > now) break;
    end(*peer,
        {ErrorCode::kDeadlineExceeded, fmt::format("connection to {}: not established within {} ms",
                                                   peer->name, config_.connect_timeout.count())});
  }
  for (; !flushing_.empty() && flushing_.front().first <= now; flushing_.pop_front()) {
    Peer* peer = find(flushing_.front().second);
    if (peer == nullptr) continue;
    // Abandoning in-flight messages would end the route's other users too: send_timeout handles
    // them.
    if (peer->sends == 0 || peer->route->users == 1) end(*peer, {});
  }
  // Sends of closing peers come first until UCX has released them.
  for (auto send = sends_.begin(); send != sends_.end() && send->second.deadline <= now;) {
    const PeerId id = send->second.peer;
    ++send;  // closing removes the previous one
    Peer* peer = find(id);
    if (peer == nullptr || peer->state == State::kClosing) continue;
    const auto resume = send == sends_.end() ? 0 : send->first;
    end(*peer,
        {ErrorCode::kDeadlineExceeded, fmt::format("connection to {}: it has not read for {} ms",
                                                   peer->name, config_.send_timeout.count())});
    send = resume == 0 ? sends_.end() : sends_.lower_bound(resume);
  }
  for (auto receive = receives_.begin();
       receive != receives_.end() && receive->second.deadline <= now;) {
    const PeerId id = receive->second.peer;
    ++receive;
    Peer* peer = find(id);
    if (peer == nullptr || peer->state == State::kClosing) continue;
    const auto resume = receive == receives_.end() ? 0 : receive->first;
    end(*peer, {ErrorCode::kDeadlineExceeded,
                fmt::format("connection to {}: a payload it announced has not arrived for {} ms",
                            peer->name, config_.send_timeout.count())});
    receive = resume == 0 ? receives_.end() : receives_.lower_bound(resume);
  }
  if (now >= next_idle_check_) {
    routes_.close_idle(now);
    next_idle_check_ = now + kIdleCheckEvery;
  }
}

Connections::Clock::time_point Connections::next_deadline() const {
  auto deadline = door_.next_deadline();
  if (!connecting_.empty()) deadline = std::min(deadline, connecting_.front().first);
  if (!flushing_.empty()) deadline = std::min(deadline, flushing_.front().first);
  // The others are checked as soon as there is nothing to read.
  if (!gone_.empty()) deadline = std::min(deadline, gone_.front().since + kMaxSilence);
  if (!sends_.empty()) deadline = std::min(deadline, sends_.begin()->second.deadline);
  if (!receives_.empty()) deadline = std::min(deadline, receives_.begin()->second.deadline);
  return deadline;
}

void Connections::shut_down() {
  door_.close_listener();
  std::vector<PeerId> ids;
  for (const auto& [id, peer] : peers_) ids.push_back(id);
  for (const PeerId id : ids) {
    Peer* peer = find(id);
    if (peer == nullptr) continue;
    peer->announced = false;
    end(*peer, closing_status(peer->name));
  }
  routes_.close_all();
  const auto deadline = Clock::now() + kShutdownTimeout;
  while (routes_.any_closing() && Clock::now() < deadline) {
    static_cast<void>(ucp_worker_progress(worker_.get()));
    static_cast<void>(end_failed());
  }
  // UCX completes some sends of a closed endpoint a little later.
  while (ucp_worker_progress(worker_.get()) != 0 && Clock::now() < deadline) {
  }
  while (!peers_.empty()) finish(*peers_.begin()->second);
  for (Call& call : calls_) call.peer = 0;  // the handler is not called any more
  while (run_calls()) {
  }
}

}  // namespace tributary::ucx
