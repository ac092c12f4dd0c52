// A connected byte stream, plain TCP or TLS behind one type, so that sessions and WebSockets are
// compiled once. All of it belongs to the thread that runs its io_context.
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

/// A move-only function of (error_code, bytes): what Beast's operations wait with.
class IoHandler {
 public:
  template <typename Handler>
  explicit IoHandler(Handler handler)
      : held_(std::make_unique<Holder<Handler>>(std::move(handler))) {}

  void operator()(const boost::system::error_code& error, std::size_t bytes) {
    // Out first: what the handler owns may own us.
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

/// Up to eight pieces of a message to be written at once; more wait for the next write.
class WriteBuffers {
 public:
  using value_type = boost::asio::const_buffer;
  using const_iterator = const value_type*;

  void add(value_type buffer) {
    if (count_ < items_.size() && buffer.size() > 0) items_[count_++] = buffer;
  }
  [[nodiscard]] const_iterator begin() const noexcept { return items_.data(); }
  [[nodiscard]] const_iterator end() const noexcept { return items_.data() + count_; }

 private:
  std::array<value_type, 8> items_;
  std::size_t count_ = 0;
};

class StreamChannel;

/// Satisfies Asio's AsyncReadStream and AsyncWriteStream, and is a lowest layer for Beast.
class Stream {
 public:
  using executor_type = boost::asio::any_io_executor;
  using Socket = boost::asio::ip::tcp::socket;
  using Done = std::function<void(const boost::system::error_code&)>;

  /// Plain without a context. The handshake is still to come.
  Stream(Socket socket, TlsContext tls);
  ~Stream();  // closes
  Stream(Stream&& other) noexcept;
  Stream& operator=(Stream&&) = delete;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  [[nodiscard]] executor_type get_executor() const;
  /// At once and successful for a plain stream.
  void handshake_as_server(Done done);
  /// Checks the certificate against `host`, a name or an address.
  void handshake_as_client(const std::string& host, Done done);
  /// Why the other side's certificate was refused; empty when it was not.
  [[nodiscard]] std::string verification_error() const;

  void cancel();
  void close();
  /// Ends our half, reads what still comes for a bounded time so that the other side gets to see
  /// our last bytes, closes.
  void finish(Done done);

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, Signature>(
        [this](auto handler, const auto& into) {
          boost::asio::mutable_buffer first;
          const auto end = boost::asio::buffer_sequence_end(into);
          for (auto it = boost::asio::buffer_sequence_begin(into); it != end; ++it) {
            first = *it;
            if (first.size() > 0) break;
          }
          read_some(first, IoHandler(std::move(handler)));
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
  void read_some(boost::asio::mutable_buffer into, IoHandler handler);
  void write_some(const WriteBuffers& from, IoHandler handler);

  std::shared_ptr<StreamChannel> channel_;
};

// What Beast's WebSocket finds by argument-dependent lookup.
void beast_close_socket(Stream& stream);
template <typename Handler>
void async_teardown(boost::beast::role_type /*role*/, Stream& stream, Handler&& handler) {
  // std::function wants to copy; Beast's handlers can only be moved.
  auto held = std::make_shared<std::decay_t<Handler>>(std::forward<Handler>(handler));
  stream.finish([held](const boost::system::error_code& error) { (*held)(error); });
}

/// "ADDRESS:PORT", "[V6]:PORT".
[[nodiscard]] std::string endpoint_text(const boost::asio::ip::tcp::endpoint& endpoint);

}  // namespace tributary
