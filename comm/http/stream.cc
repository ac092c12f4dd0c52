#include "comm/http/stream.h"

#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <boost/asio/ssl/stream.hpp>

#include "comm/http/stream_channel.h"

namespace tributary {

namespace asio = boost::asio;
using boost::system::error_code;
using Socket = Stream::Socket;

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
  std::string binding() override { return {}; }
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
    if (!verify_host(stream_.native_handle(), host)) {
      asio::post(socket().get_executor(),
                 [done = std::move(done)] { done(asio::error::invalid_argument); });
      return;
    }
    stream_.async_handshake(asio::ssl::stream_base::client, std::move(done));
  }
  std::string verification_error() override {
    return verification_error_of(stream_.native_handle());
  }
  std::string binding() override { return session_binding(stream_.native_handle()); }
  void say_goodbye(Stream::Done done) override { stream_.async_shutdown(std::move(done)); }

 private:
  TlsContext context_;
  asio::ssl::stream<Socket> stream_;
};

std::shared_ptr<StreamChannel> make_channel(Socket socket, TlsContext tls) {
  if (tls == nullptr) return std::make_shared<PlainChannel>(std::move(socket));
  return std::make_shared<TlsChannel>(std::move(socket), std::move(tls));
}

}  // namespace

Stream::Stream(Socket socket, TlsContext tls)
    : Stream(make_channel(std::move(socket), std::move(tls))) {}
Stream::Stream(std::shared_ptr<StreamChannel> channel) : channel_(std::move(channel)) {
  error_code ignored;
  // Small messages that wait for responses: Nagle's algorithm would only delay them.
  channel_->socket().set_option(asio::ip::tcp::no_delay(true), ignored);
}
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
std::string Stream::binding() const {
  return channel_->binding();
}

void Stream::cancel() {
  error_code ignored;
  channel_->socket().cancel(ignored);
}
void Stream::close() {
  channel_->close();
}
void Stream::shutdown_send() {
  channel_->shutdown_send();
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
