#include "comm/tcp/tcp_peers.h"

#include <fmt/format.h>

#include <utility>

namespace tributary::tcp {
namespace {

/// Limit of connections that have not proven themselves yet, which takes an honest one two round
/// trips. When there are more, the oldest is closed.
constexpr std::size_t kMaxStrangers = 128;

}  // namespace

TcpPeers::TcpPeers(boost::asio::io_context& io, const TransportConfig& config,
                   TransportHandler& handler, std::atomic<PeerId>& next_id)
    : io_(io), config_(config), handler_(handler), next_id_(next_id) {
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
  if (strangers_.size() >= kMaxStrangers) {
    const auto oldest = find(*strangers_.begin());
    strangers_.erase(strangers_.begin());
    oldest->end({ErrorCode::kUnavailable, "closed to make room before it had proven itself"});
  }
  const PeerId id = next_id_.fetch_add(1);
  strangers_.insert(id);
  const auto connection = std::make_shared<TcpConnection>(*this, id, std::move(socket));
  peers_[id] = {.connection = connection};
  connection->accept(server_tls_);
}

void TcpPeers::connect(PeerId id, const TcpConnection::Tcp::endpoint& to,
                       const Introduction& introduction) {
  if (stopped_) return;
  const auto connection =
      std::make_shared<TcpConnection>(*this, id, TcpConnection::Tcp::socket(io_));
  peers_[id] = {.connection = connection};
  connection->connect(to, introduction, client_tls_);
}

void TcpPeers::send(PeerId id, OutgoingMessage message) {
  const auto connection = find(id);
  if (connection != nullptr && connection->takes_messages()) {
    return connection->send(std::move(message));
  }
  if (message.sent) {
    message.sent({ErrorCode::kNotFound, fmt::format("peer {}: not connected", id)});
  }
}

void TcpPeers::disconnect(PeerId id) {
  if (const auto connection = find(id)) connection->disconnect();
}

void TcpPeers::stop() {
  stopped_ = true;
  if (listener_) listener_->close();
  const auto all = peers_;  // a copy: an end removes its connection
  for (const auto& [id, peer] : all) {
    peer.connection->end({ErrorCode::kUnavailable, "the transport has been closed"});
  }
}

std::shared_ptr<TcpConnection> TcpPeers::find(PeerId id) const {
  const auto found = peers_.find(id);
  return found == peers_.end() ? nullptr : found->second.connection;
}

Status TcpPeers::admit(PeerId peer) {
  if (admitted_ >= config_.max_connections) {
    return {ErrorCode::kPoolFull, fmt::format("all {} places are taken", admitted_)};
  }
  strangers_.erase(peer);
  peers_.at(peer).admitted = true;
  ++admitted_;
  return {};
}

std::optional<Landing> TcpPeers::on_message(PeerId peer, std::uint16_t type,
                                            std::span<const std::byte> header,
                                            std::size_t payload_bytes) {
  return handler_.on_message(peer, type, header, payload_bytes);
}

void TcpPeers::on_end(PeerId peer, const Status& reason, bool announced) {
  strangers_.erase(peer);
  const auto found = peers_.find(peer);
  if (found->second.admitted) --admitted_;
  peers_.erase(found);
  if (announced && !stopped_) handler_.on_disconnect(peer, reason);
}

}  // namespace tributary::tcp
