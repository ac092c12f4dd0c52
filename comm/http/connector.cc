#include "comm/http/connector.h"

#include <fmt/format.h>

#include <boost/asio/connect.hpp>
#include <utility>
#include <vector>

#include "comm/http/tls_errors.h"

namespace tributary {

namespace asio = boost::asio;

Connector::Connector(asio::io_context& io, Url url, TlsContext tls)
    : url_(std::move(url)), tls_(std::move(tls)), resolver_(io), socket_(io) {}

void Connector::start(Connected connected) {
  connected_ = std::move(connected);
  Error not_address;
  const auto address = asio::ip::make_address(url_.host, not_address);
  if (!not_address) {
    return connect({Tcp::endpoint(address, static_cast<std::uint16_t>(url_.port))});
  }
  resolver_.async_resolve(
      url_.host, fmt::format("{}", url_.port), Tcp::resolver::numeric_service,
      [self = shared_from_this()](const Error& error, const Tcp::resolver::results_type& results) {
        if (!self->connected_) return;
        if (error) {
          return self->finish(std::nullopt, {ErrorCode::kUnavailable,
                                             fmt::format("no address for {}: {}", self->url_.host,
                                                         error.message())});
        }
        std::vector<Tcp::endpoint> endpoints;
        for (const auto& entry : results) endpoints.push_back(entry.endpoint());
        self->connect(endpoints);
      });
}

void Connector::cancel() {
  connected_ = nullptr;
  resolver_.cancel();
  Error ignored;
  socket_.close(ignored);
  if (stream_.has_value()) stream_->close();
}

void Connector::connect(const std::vector<Tcp::endpoint>& endpoints) {
  asio::async_connect(
      socket_, endpoints, [self = shared_from_this()](const Error& error, const Tcp::endpoint&) {
        if (!self->connected_) return;
        if (error) {
          return self->finish(std::nullopt, {ErrorCode::kUnavailable,
                                             fmt::format("cannot connect to {}: {}",
                                                         authority(self->url_), error.message())});
        }
        self->handshake();
      });
}

void Connector::handshake() {
  stream_.emplace(std::move(socket_), tls_);
  stream_->handshake_as_client(url_.host, [self = shared_from_this()](const Error& error) {
    if (!self->connected_) return;
    if (!error) return self->finish(std::move(self->stream_), {});
    const std::string refused = self->stream_->verification_error();
    std::string reason = refused.empty() ? error.message() : "its certificate: " + refused;
    if (answers_without_tls(error)) reason = "it does not speak TLS: is its URL http://?";
    self->finish(std::nullopt, {ErrorCode::kUnavailable,
                                fmt::format("TLS with {}: {}", authority(self->url_), reason)});
  });
}

void Connector::finish(std::optional<Stream> stream, const Status& status) {
  const Connected connected = std::exchange(connected_, nullptr);
  connected(std::move(stream), status);
}

std::string authority(const Url& url) {
  return url.host.find(':') != std::string::npos ? fmt::format("[{}]:{}", url.host, url.port)
                                                 : fmt::format("{}:{}", url.host, url.port);
}

TlsContext tls_for(const Url& url, const std::string& certificate_authority) {
  return url.tls ? client_tls_context(certificate_authority) : nullptr;
}

}  // namespace tributary
