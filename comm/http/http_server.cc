#include "comm/http/http_server.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "comm/http/event_loop_impl.h"
#include "comm/http/http_session.h"
#include "comm/http/url.h"
#include "core/base/error.h"
#include "core/base/quote.h"

namespace tributary {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// Pause before the next accept when descriptors or memory run out. Clients wait in the backlog.
constexpr std::chrono::milliseconds kAcceptPause{100};

tcp::endpoint parse_endpoint(const std::string& listen) {
  const HostPort parts = parse_host_port(listen);
  const auto port = static_cast<std::uint16_t>(parts.port);
  if (parts.host == "localhost") return {asio::ip::address_v4::loopback(), port};
  error_code error;
  const auto address = asio::ip::make_address(parts.host, error);
  if (error) {
    fail(ErrorCode::kInvalidArgument, "address {}: {} is not an IP address", quote(listen),
         quote(parts.host));
  }
  return {address, port};
}

void check(const error_code& error, const std::string& listen) {
  if (error) fail(ErrorCode::kIo, "cannot listen on {}: {}", listen, error.message());
}

}  // namespace

struct HttpServer::Impl : std::enable_shared_from_this<HttpServer::Impl> {
  Impl(EventLoop& loop, const HttpServerConfig& config, HttpHandlers handlers)
      : service(std::make_shared<HttpService>()), acceptor(loop.impl().io), pause(loop.impl().io) {
    const tcp::endpoint endpoint = parse_endpoint(config.listen);
    if (config.tls.has_value()) tls = server_tls_context(config.tls->certificate, config.tls->key);
    service->config = config;
    service->handlers = std::make_shared<const HttpHandlers>(std::move(handlers));
    service->gate = loop.impl().gate;

    error_code error;
    acceptor.open(endpoint.protocol(), error);
    check(error, config.listen);
    acceptor.set_option(tcp::acceptor::reuse_address(true), error);
    check(error, config.listen);
    acceptor.bind(endpoint, error);
    check(error, config.listen);
    acceptor.listen(tcp::acceptor::max_listen_connections, error);
    check(error, config.listen);
    const tcp::endpoint bound = acceptor.local_endpoint(error);
    check(error, config.listen);
    address = endpoint_text(bound);
  }

  void accept() {
    acceptor.async_accept([self = shared_from_this()](const error_code& error, tcp::socket socket) {
      if (!self->acceptor.is_open()) return;
      if (!error) {
        self->take(std::move(socket));
      } else if (error != asio::error::connection_aborted) {
        return self->accept_later();
      }
      self->accept();
    });
  }

  void accept_later() {
    pause.expires_after(kAcceptPause);
    pause.async_wait([self = shared_from_this()](const error_code& error) {
      if (!error && self->acceptor.is_open()) self->accept();
    });
  }

  void take(tcp::socket socket) {
    error_code gone;
    const tcp::endpoint remote = socket.remote_endpoint(gone);
    if (gone) return;
    if (service->connections->count() >= service->config.max_connections) {
      if (!service->connections->evict()) {
        ++service->traffic.refused;
        return;
      }
      ++service->traffic.evicted;
    }
    std::make_shared<HttpSession>(service, Stream(std::move(socket), tls), endpoint_text(remote))
        ->start();
  }

  void stop() {
    service->handlers = nullptr;
    error_code ignored;
    acceptor.close(ignored);
    pause.cancel();
    service->connections->abort_all();
  }

  std::shared_ptr<HttpService> service;
  TlsContext tls;
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  std::string address;
};

HttpServer::HttpServer(EventLoop& loop, const HttpServerConfig& config, HttpHandlers handlers)
    : impl_(std::make_shared<Impl>(loop, config, std::move(handlers))) {
  impl_->accept();
}

HttpServer::~HttpServer() {
  impl_->stop();
}

const std::string& HttpServer::address() const noexcept {
  return impl_->address;
}
int HttpServer::connections() const noexcept {
  return impl_->service->connections->count();
}

const HttpTraffic& HttpServer::traffic() const noexcept {
  return impl_->service->traffic;
}

bool is_loopback(const std::string& listen) {
  return parse_endpoint(listen).address().is_loopback();
}

}  // namespace tributary
