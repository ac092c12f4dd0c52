// A connected byte stream: plain TCP or TLS behind one type, so that sessions and WebSockets are
// compiled once. Everything here is used on the thread that runs its io_context.
#pragma once

#include <array>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/async_result.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/role.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "comm/http/tls_context.h"

namespace tributary {

/// A move-only function of (error_code, bytes), which completes an operation of Beast.
class IoHandler {
 public:
  template <typename Handler>
  explicit IoHandler(Handler handler)
      : held_(std::make_unique<Holder<Handler>>(std::move(handler))) {}

  void operator()(const boost::system::error_code& error, std::size_t bytes) {
    // Moved out before the call: the handler may own this object.
    const std::unique_ptr<Base> held = std::move(held_);
    held->call(error, bytes);
  }

 private:
  struct Base {
    Base() = default;
    Base(const Base&) = delete;
    Base& operator=(const Base&) = delete;
    virtual ~Base() = default;
    virtual void call(const boost::system::error_code& error, std::size_t bytes) = 0;
  };
  template <typename Handler>
  struct Holder final : Base {
    explicit Holder(Handler from) : handler(std::move(from)) {}
    void call(const boost::system::error_code& error, std::size_t bytes) override {
      handler(error, bytes);
    }
    Handler handler;
  };
  std::unique_ptr<Base> held_;
};

/// Up to eight buffers for one read or write; the rest follows in the next.
template <typename Buffer>
class BufferList {
 public:
  using value_type = Buffer;
  using const_iterator = const value_type*;

  void add(value_type buffer) {
    if (count_ < items_.size() && buffer.size() > 0) items_[count_++] = buffer;
  }
  [[nodiscard]] bool full() const noexcept { return count_ == items_.size(); }
  [[nodiscard]] const_iterator begin() const noexcept { return items_.data(); }
  [[nodiscard]] const_iterator end() const noexcept { return items_.data() + count_; }

 private:
  std::array<value_type, 8> items_;
  std::size_t count_ = 0;
};
using ReadBuffers = BufferList<boost::asio::mutable_buffer>;
using WriteBuffers = BufferList<boost::asio::const_buffer>;

class StreamChannel;

/// Satisfies Asio's AsyncReadStream and AsyncWriteStream, and is a lowest layer for Beast.
class Stream {
 public:
  using executor_type = boost::asio::any_io_executor;
  using Socket = boost::asio::ip::tcp::socket;
  using Done = std::function<void(const boost::system::error_code&)>;

  /// Plain TCP if the context is null. Does no handshake yet.
  Stream(Socket socket, TlsContext tls);
  explicit Stream(std::shared_ptr<StreamChannel> channel);
  ~Stream();  // closes
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] executor_type get_executor() const;
  /// Succeeds at once on a plain stream.
  void handshake_as_server(Done done);
  /// Verifies the certificate for `host`, a name or an address.
  void handshake_as_client(const std::string& host, Done done);
  /// The reason why the peer's certificate was refused; empty if it was not.
  [[nodiscard]] std::string verification_error() const;
  /// Bytes that only the two ends of this TLS session know (its exporter, RFC 5705); empty on a
  /// plain stream. Call it after the handshake. Throws kInternal.
  [[nodiscard]] std::string binding() const;

  void cancel();
  void close();
  /// The peer reads what was written before, then the end of the stream. It may still send.
  void shutdown_send();
  /// A pending read ends, as if the peer had closed its sending side.
  void shutdown_receive();
  /// Shuts down our sending side, drains incoming bytes for a bounded time so that the peer
  /// receives our last bytes, then closes.
  void finish(Done done);

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, Signature>(
        [this](auto handler, const auto& into) {
          ReadBuffers pieces;
          const auto end = boost::asio::buffer_sequence_end(into);
          for (auto it = boost::asio::buffer_sequence_begin(into); it != end; ++it) pieces.add(*it);
          read_some(pieces, IoHandler(std::move(handler)));
        },
        token, buffers);
  }

  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, Signature>(
        [this](auto handler, const auto& from) {
          WriteBuffers pieces;
          const auto end = boost::asio::buffer_sequence_end(from);
          for (auto it = boost::asio::buffer_sequence_begin(from); it != end; ++it) pieces.add(*it);
          write_some(pieces, IoHandler(std::move(handler)));
        },
        token, buffers);
  }

 private:
  using Signature = void(boost::system::error_code, std::size_t);
  void read_some(const ReadBuffers& into, IoHandler handler);
  void write_some(const WriteBuffers& from, IoHandler handler);

  std::shared_ptr<StreamChannel> channel_;
};

// Beast's WebSocket finds these by argument-dependent lookup.
void beast_close_socket(Stream& stream);
template <typename Handler>
void async_teardown(boost::beast::role_type /*role*/, Stream& stream, Handler&& handler) {
  // std::function requires copyable functions; Beast's handlers are move-only.
  auto held = std::make_shared<std::decay_t<Handler>>(std::forward<Handler>(handler));
  stream.finish([held](const boost::system::error_code& error) { (*held)(error); });
}

/// "ADDRESS:PORT", "[V6]:PORT".
[[nodiscard]] std::string endpoint_text(const boost::asio::ip::tcp::endpoint& endpoint);

}  // namespace tributary
