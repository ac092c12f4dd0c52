// One connection: TLS and the proof, then messages in both directions, then an orderly end.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "comm/http/stream.h"
#include "comm/http/tls_context.h"
#include "comm/tcp/direct_sender.h"
#include "comm/tcp/frame_reader.h"
#include "comm/tcp/frame_writer.h"
#include "comm/transport/transport.h"

namespace tributary::tcp {

/// Receives the events of a connection, on the transport's thread.
class ConnectionOwner {
 public:
  ConnectionOwner() = default;
  ConnectionOwner(const ConnectionOwner&) = delete;
  ConnectionOwner& operator=(const ConnectionOwner&) = delete;
  virtual ~ConnectionOwner() = default;

  [[nodiscard]] virtual const TransportConfig& config() const noexcept = 0;
  /// An accepted connection has proven an id. Returns kPoolFull if there is no room for it.
  [[nodiscard]] virtual Status admit(PeerId peer, std::uint64_t id) = 0;
  /// Both sides have proven themselves.
  virtual void on_open(PeerId peer, const Proven& who) = 0;
  virtual void on_limit(TransportLimit limit, const Status& what) = 0;
  [[nodiscard]] virtual std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                                          std::span<const std::byte> header,
                                                          std::size_t payload_bytes) = 0;
  /// The last event. `announced`: the handler knows the peer and must be told.
  virtual void on_end(PeerId peer, const Status& reason, bool announced) = 0;
};

/// Used by the transport's thread only. It keeps itself alive while one of its operations is in
/// progress; `owner` outlives all connections.
///
/// `done` and `sent` of unfinished messages are called only after the socket is closed and all its
/// operations have returned: nobody reads or writes that memory any more.
class TcpConnection : public std::enable_shared_from_this<TcpConnection> {
 public:
  using Clock = std::chrono::steady_clock;
  using Tcp = boost::asio::ip::tcp;

  /// `direct`: by which other threads write.
  TcpConnection(ConnectionOwner& owner, PeerId id, Tcp::socket socket,
                std::shared_ptr<DirectSender> direct);

  /// Starts to connect; `tls` is null for plain TCP.
  void connect(const Tcp::endpoint& to, const Introduction& introduction, TlsContext tls);
  void accept(const TlsContext& tls);

  /// Goes on with the messages that wait in `direct`.
  void send_waiting();
  /// Messages that were queued before have one second to be written.
  void disconnect();
  void end(const Status& reason);

 private:
  enum class State : std::uint8_t { kGreeting, kOpen, kClosing };

  [[nodiscard]] bool takes_messages() const noexcept {
    return state_ != State::kClosing && !leaving_;
  }
  void send(Unfinished unfinished);
  void refuse(const OutgoingMessage& message, const Status& reason);
  void set_up(const TlsContext& tls);
  void on_handshake(const Status& status, const Proven& who);
  void read();
  void on_read(const boost::system::error_code& error, std::size_t bytes);
  void write();
  void leave();
  void watch_deadlines();
  void check_deadlines();
  void finish_if_idle();
  [[nodiscard]] std::optional<Landing> on_message(std::uint16_t type,
                                                  std::span<const std::byte> header,
                                                  std::size_t payload_bytes);
  [[nodiscard]] Status error_of(const boost::system::error_code& error) const;
  /// "connection to 10.0.0.1:7070: ..."
  [[nodiscard]] Status named(ErrorCode code, std::string_view what) const;

  ConnectionOwner& owner_;
  const TransportConfig& config_;
  const PeerId id_;
  Tcp::socket socket_;  // moved into stream_ once it is connected
  std::optional<Stream> stream_;
  std::string name_;  // the other side's address
  FrameReader reader_;
  FrameWriter writer_;
  const std::shared_ptr<DirectSender> direct_;

  State state_ = State::kGreeting;
  bool accepted_ = false;
  bool announced_ = false;
  bool leaving_ = false;  // disconnect() was called, or we have refused it
  bool encrypted_ = false;
  int socket_number_ = -1;
  bool reading_ = false, writing_ = false;
  bool unread_ = false;    // reading has stopped: too much waits to be read
  bool read_all_ = false;  // the other side has closed its sending side
  int operations_ = 0;     // in progress, of all kinds
  Status reason_;

  boost::asio::steady_timer timer_;
  Clock::time_point armed_ = Clock::time_point::max();  // when the timer expires
  Clock::time_point deadline_;                          // for the greeting, then for leaving
  Clock::time_point opened_;
  std::uint64_t frame_ = 0;  // number of the frame that is arriving
  Clock::time_point frame_since_;
};

}  // namespace tributary::tcp
