// TLS for much data: many records are encrypted or decrypted between two calls of the system.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "comm/http/stream_channel.h"
#include "comm/http/tls_context.h"

struct bio_st;  // of OpenSSL

namespace tributary {

/// OpenSSL works on two rings in memory, one a direction, and the socket fills the one and empties
/// the other. A ring holds 16 records (256 KiB); its pages are touched when they are first used.
/// The socket is read only while somebody reads, so that a peer which is not read from has to wait.
class TlsPump final : public StreamChannel {
 public:
  TlsPump(Socket socket, TlsContext context);

  Socket& socket() override { return socket_; }
  void read_some(const ReadBuffers& into, IoHandler handler) override;
  /// `handler` is called when the system has all bytes that were taken.
  void write_some(const WriteBuffers& from, IoHandler handler) override;
  void handshake_as_server(Stream::Done done) override;
  void handshake_as_client(const std::string& host, Stream::Done done) override;
  std::string verification_error() override;
  std::string binding() override;
  void say_goodbye(Stream::Done done) override;
  /// What was written before leaves, then OpenSSL's end of the stream, then the socket's.
  void shutdown_send() override;

 private:
  using error_code = boost::system::error_code;
  struct Read {
    ReadBuffers into;
    IoHandler done;
  };
  struct Write {
    WriteBuffers from;
    IoHandler done;
    std::size_t taken = 0;
  };
  struct Free {
    void operator()(ssl_st* ssl) const noexcept;
    void operator()(bio_st* bio) const noexcept;
  };

  /// Carries every operation as far as it goes. Called when one has begun, and when the socket has
  /// read or written.
  void turn();
  void shake_hands();
  void decrypt();
  void encrypt();
  void receive();
  void send();
  void on_received(const error_code& error, std::size_t bytes);
  void on_sent(const error_code& error, std::size_t bytes);
  /// Nothing if OpenSSL only waits for the socket.
  [[nodiscard]] std::optional<error_code> error_of(int result) const;

  void end_handshake(const error_code& error);
  void end_read(const error_code& error, std::size_t bytes);
  void end_write(const error_code& error, std::size_t bytes);

  const TlsContext context_;
  Socket socket_;
  std::unique_ptr<ssl_st, Free> ssl_;
  std::unique_ptr<bio_st, Free> rings_;  // the socket's side of both
  Stream::Done handshake_;
  std::optional<Read> read_;
  std::optional<Write> write_;
  bool receiving_ = false, sending_ = false;
  bool ending_ = false;  // shutdown_send() waits for what was written before
  error_code failed_;    // of TLS: ends every operation
  error_code unsent_;    // of the socket: ends those that write
};

}  // namespace tributary
