#include "comm/tcp/tcp_peers.h"

#include <fmt/format.h>

#include <utility>

namespace tributary::tcp {
namespace {

Status transport_closed() {
  return {ErrorCode::kUnavailable, "the transport has been closed"};
}

std::uint64_t key_of(const TcpConnection::Tcp::socket& socket) {
  boost::system::error_code gone;
  const auto address = socket.remote_endpoint(gone).address();
  if (address.is_v4()) return address_key(address.to_v4().to_bytes());
  return address_key(address.to_v6().to_bytes());
}

}  // namespace

TcpPeers::TcpPeers(boost::asio::io_context& io, const TransportConfig& config,
                   TransportHandler& handler, std::atomic<PeerId>& next_id, DirectSenders& direct)
    : io_(io),
      config_(config),
      handler_(handler),
      next_id_(next_id),
      direct_(direct),
      strangers_(places_for_strangers(config)),
      admitted_(static_cast<std::size_t>(config.max_connections),
                static_cast<std::size_t>(config.max_connections_of_id)) {
  if (config.tls) {
    const TransportTls& tls = *config.tls;
    client_tls_ = client_tls_context(tls.authority, tls.certificate, tls.key);
    if (!config.listen.empty()) {
      server_tls_ = server_tls_context(tls.certificate, tls.key, tls.client_authority);
    }
  }
  if (config.listen.empty()) return;
  listener_.emplace(
      io, config.listen,
      TcpListener::Events{
          .connected = [this](TcpConnection::Tcp::socket socket) { accept(std::move(socket)); },
          .paused = [this](const Status& reason) { handler_.on_accepting_paused(reason); },
          .failed = [this](const Status& reason) { handler_.on_listener_failed(reason); }});
}

std::string TcpPeers::address() const {
  return listener_ ? listener_->address() : std::string();
}

void TcpPeers::start() {
  if (listener_) listener_->accept();
}

void TcpPeers::accept(TcpConnection::Tcp::socket socket) {
  const PeerId id = next_id_.fetch_add(1);
  if (const auto gone = strangers_.take(id, key_of(socket)).gone) {
    const Status why(ErrorCode::kUnavailable, "closed to make room before it had proven itself");
    on_limit(TransportLimit::kStrangers, why);
    find(*gone)->end(why);
  }
  const auto connection =
      std::make_shared<TcpConnection>(*this, id, std::move(socket), direct_.add(id));
  peers_[id] = {.connection = connection};
  connection->accept(server_tls_);
}

void TcpPeers::connect(PeerId id, const TcpConnection::Tcp::endpoint& to,
                       const Introduction& introduction) {
  const auto direct = direct_.find(id);
  const auto connection =
      std::make_shared<TcpConnection>(*this, id, TcpConnection::Tcp::socket(io_), direct);
  peers_[id] = {.connection = connection};
  if (stopped_) return connection->end(transport_closed());
  connection->connect(to, introduction, client_tls_);
  // The disconnect() of another thread may have come before what this thread has posted.
  if (direct->closed()) connection->disconnect();
}

void TcpPeers::send_waiting(PeerId id) {
  if (const auto connection = find(id)) connection->send_waiting();
}

void TcpPeers::disconnect(PeerId id) {
  if (const auto connection = find(id)) connection->disconnect();
}

void TcpPeers::stop() {
  stopped_ = true;
  if (listener_) listener_->close();
  const auto all = peers_;  // a copy: an end removes its connection
  for (const auto& [id, peer] : all) {
    peer.connection->end(transport_closed());
  }
}

std::shared_ptr<TcpConnection> TcpPeers::find(PeerId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.connection;
}

Status TcpPeers::admit(PeerId peer, std::uint64_t id) {
  const Places::Taken place = admitted_.take(peer, id);
  if (place.ok) strangers_.leave(peer);
  if (place.ok && !place.gone) return {};
  const Status full(ErrorCode::kPoolFull, place.why);
  on_limit(TransportLimit::kPlaces, full);
  if (place.gone) find(*place.gone)->end(full);
  return place.ok ? Status() : full;
}

void TcpPeers::on_open(PeerId peer, const Proven& who) {
  if (!stopped_) handler_.on_open(peer, who);
}

void TcpPeers::on_limit(TransportLimit limit, const Status& what) {
  if (!stopped_) handler_.on_limit(limit, what);
}

std::optional<Landing> TcpPeers::on_message(PeerId peer, std::uint16_t type,
                                            std::span<const std::byte> header,
                                            std::size_t payload_bytes) {
  if (!std::exchange(peers_.at(peer).spoken, true)) admitted_.settle(peer);
  return handler_.on_message(peer, type, header, payload_bytes);
}

void TcpPeers::on_end(PeerId peer, const Status& reason, bool announced) {
  strangers_.leave(peer);
  admitted_.leave(peer);
  peers_.erase(peer);
  direct_.remove(peer);
  if (announced && !stopped_) handler_.on_disconnect(peer, reason);
}

}  // namespace tributary::tcp
