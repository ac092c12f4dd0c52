#include "comm/http/stream.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>

namespace tributary {

namespace asio = boost::asio;
using boost::system::error_code;
using Socket = Stream::Socket;

namespace {
// The time for draining a closed connection: a few round trips over any network.
constexpr std::chrono::milliseconds kLinger{1'000};
}  // namespace

/// Kept alive by its stream and by its own shutdown.
class StreamChannel : public std::enable_shared_from_this<StreamChannel> {
 public:
  StreamChannel() = default;
  StreamChannel(const StreamChannel&) = delete;
  StreamChannel& operator=(const StreamChannel&) = delete;
  virtual ~StreamChannel() = default;

  virtual Socket& socket() = 0;
  virtual void read_some(const ReadBuffers& into, IoHandler handler) = 0;
  virtual void write_some(const WriteBuffers& from, IoHandler handler) = 0;
  virtual void handshake_as_server(Stream::Done done) = 0;
  virtual void handshake_as_client(const std::string& host, Stream::Done done) = 0;
  virtual std::string verification_error() = 0;
  virtual void say_goodbye(Stream::Done done) = 0;

  void close() {
    error_code ignored;
    socket().close(ignored);
  }

  void finish(Stream::Done done) {
    auto timer = std::make_shared<asio::steady_timer>(socket().get_executor(), kLinger);
    timer->async_wait([self = shared_from_this()](const error_code& error) {
      if (!error) self->close();
    });
    say_goodbye([self = shared_from_this(), timer, done = std::move(done)](const error_code&) {
      error_code ignored;
      self->socket().shutdown(Socket::shutdown_send, ignored);
      self->drain(timer, done);
    });
  }

 private:
  /// Closing with unread bytes would reset the connection, and our last bytes would be lost.
  void drain(const std::shared_ptr<asio::steady_timer>& timer, const Stream::Done& done) {
    socket().async_read_some(asio::buffer(trash_), [self = shared_from_this(), timer, done](
                                                       const error_code& error, std::size_t) {
      if (!error) return self->drain(timer, done);
      timer->cancel();
      self->close();
      done({});
    });
  }

  std::array<char, 4096> trash_;
};

namespace {

class PlainChannel final : public StreamChannel {
 public:
  explicit PlainChannel(Socket socket) : socket_(std::move(socket)) {}

  Socket& socket() override { return socket_; }
  void read_some(const ReadBuffers& into, IoHandler handler) override {
    socket_.async_read_some(into, std::move(handler));
  }
  void write_some(const WriteBuffers& from, IoHandler handler) override {
    socket_.async_write_some(from, std::move(handler));
  }
  void handshake_as_server(Stream::Done done) override { succeed(std::move(done)); }
  void handshake_as_client(const std::string& /*host*/, Stream::Done done) override {
    succeed(std::move(done));
  }
  std::string verification_error() override { return {}; }
  void say_goodbye(Stream::Done done) override { succeed(std::move(done)); }

 private:
  void succeed(Stream::Done done) {
    asio::post(socket_.get_executor(), [done = std::move(done)] { done({}); });
  }

  Socket socket_;
};

class TlsChannel final : public StreamChannel {
 public:
  TlsChannel(Socket socket, TlsContext context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}

  Socket& socket() override { return stream_.next_layer(); }
  void read_some(const ReadBuffers& into, IoHandler handler) override {
    stream_.async_read_some(into, std::move(handler));
  }
  void write_some(const WriteBuffers& from, IoHandler handler) override {
    stream_.async_write_some(from, std::move(handler));
  }
  void handshake_as_server(Stream::Done done) override {
    stream_.async_handshake(asio::ssl::stream_base::server, std::move(done));
  }
  void handshake_as_client(const std::string& host, Stream::Done done) override {
    SSL* ssl = stream_.native_handle();
    error_code not_address;
    asio::ip::make_address(host, not_address);
    X509_VERIFY_PARAM* checks = SSL_get0_param(ssl);
    const bool set = not_address ? X509_VERIFY_PARAM_set1_host(checks, host.c_str(), 0) == 1 &&
                                       SSL_set_tlsext_host_name(ssl, host.c_str()) == 1
                                 : X509_VERIFY_PARAM_set1_ip_asc(checks, host.c_str()) == 1;
    if (!set) {
      asio::post(socket().get_executor(),
                 [done = std::move(done)] { done(asio::error::invalid_argument); });
      return;
    }
    stream_.async_handshake(asio::ssl::stream_base::client, std::move(done));
  }
  std::string verification_error() override {
    const auto result = SSL_get_verify_result(stream_.native_handle());
    return result == X509_V_OK ? "" : X509_verify_cert_error_string(result);
  }
  void say_goodbye(Stream::Done done) override { stream_.async_shutdown(std::move(done)); }

 private:
  TlsContext context_;
  asio::ssl::stream<Socket> stream_;
};

std::shared_ptr<StreamChannel> make_channel(Socket socket, TlsContext tls) {
  error_code ignored;
  // Small messages that wait for responses: Nagle's algorithm would only delay them.
  socket.set_option(asio::ip::tcp::no_delay(true), ignored);
  if (tls == nullptr) return std::make_shared<PlainChannel>(std::move(socket));
  return std::make_shared<TlsChannel>(std::move(socket), std::move(tls));
}

}  // namespace

Stream::Stream(Socket socket, TlsContext tls)
    : channel_(make_channel(std::move(socket), std::move(tls))) {}
Stream::~Stream() = default;
Stream::Stream(Stream&& other) noexcept = default;

Stream::executor_type Stream::get_executor() const {
  return channel_->socket().get_executor();
}
void Stream::handshake_as_server(Done done) {
  channel_->handshake_as_server(std::move(done));
}
void Stream::handshake_as_client(const std::string& host, Done done) {
  channel_->handshake_as_client(host, std::move(done));
}
std::string Stream::verification_error() const {
  return channel_->verification_error();
}

void Stream::cancel() {
  error_code ignored;
  channel_->socket().cancel(ignored);
}
void Stream::close() {
  channel_->close();
}
void Stream::shutdown_send() {
  error_code ignored;
  channel_->socket().shutdown(Socket::shutdown_send, ignored);
}
void Stream::shutdown_receive() {
  error_code ignored;
  channel_->socket().shutdown(Socket::shutdown_receive, ignored);
}
void Stream::finish(Done done) {
  channel_->finish(std::move(done));
}

void Stream::read_some(const ReadBuffers& into, IoHandler handler) {
  channel_->read_some(into, std::move(handler));
}
void Stream::write_some(const WriteBuffers& from, IoHandler handler) {
  channel_->write_some(from, std::move(handler));
}

void beast_close_socket(Stream& stream) {
  stream.close();
}

std::string endpoint_text(const asio::ip::tcp::endpoint& endpoint) {
  const std::string address = endpoint.address().to_string();
  return endpoint.address().is_v6() ? fmt::format("[{}]:{}", address, endpoint.port())
                                    : fmt::format("{}:{}", address, endpoint.port());
}

}  // namespace tributary
