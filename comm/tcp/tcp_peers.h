// The connections of a TCP transport: strangers, admitted peers, and peers that the handler knows.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>

#include "comm/http/tls_context.h"
#include "comm/tcp/tcp_connection.h"
#include "comm/tcp/tcp_listener.h"
#include "comm/transport/places.h"
#include "comm/transport/transport.h"

namespace tributary::tcp {

/// Used by the transport's thread only, except in the constructor.
class TcpPeers final : public ConnectionOwner {
 public:
  /// Binds. Accepted peers get their ids from `next_id`. All arguments outlive it. Throws as
  /// make_tcp_transport does.
  TcpPeers(boost::asio::io_context& io, const TransportConfig& config, TransportHandler& handler,
           std::atomic<PeerId>& next_id, DirectSenders& direct);

  /// Empty if the transport does not listen.
  [[nodiscard]] std::string address() const;
  void start();
  /// `direct` has the peer already.
  void connect(PeerId id, const TcpConnection::Tcp::endpoint& to, const Introduction& introduction);
  /// See TcpConnection::send_waiting.
  void send_waiting(PeerId id);
  void disconnect(PeerId id);
  /// Closes everything. The handler is not called any more; `done` and `sent` are, until the
  /// io_context has no work left.
  void stop();

 private:
  struct Peer {
    std::shared_ptr<TcpConnection> connection;
    bool spoken = false;
  };

  void accept(TcpConnection::Tcp::socket socket);
  [[nodiscard]] std::shared_ptr<TcpConnection> find(PeerId id) const;

  [[nodiscard]] const TransportConfig& config() const noexcept override { return config_; }
  [[nodiscard]] Status admit(PeerId peer, std::uint64_t id) override;
  void on_open(PeerId peer, const Proven& who) override;
  void on_limit(TransportLimit limit, const Status& what) override;
  [[nodiscard]] std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                                  std::span<const std::byte> header,
                                                  std::size_t payload_bytes) override;
  void on_end(PeerId peer, const Status& reason, bool announced) override;

  boost::asio::io_context& io_;
  const TransportConfig& config_;
  TransportHandler& handler_;
  std::atomic<PeerId>& next_id_;
  DirectSenders& direct_;
  TlsContext server_tls_, client_tls_;  // null: plain
  std::optional<TcpListener> listener_;
  std::unordered_map<PeerId, Peer> peers_;
  Places strangers_;  // accepted but not proven yet
  Places admitted_;
  bool stopped_ = false;
};

}  // namespace tributary::tcp
