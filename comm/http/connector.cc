#include "comm/http/connector.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>
#include <vector>

#include "comm/http/tls_errors.h"

namespace tributary {

namespace asio = boost::asio;

Connector::Connector(asio::io_context& io, Url url, TlsContext tls)
    : io_(io), url_(std::move(url)), tls_(std::move(tls)), resolver_(io), timer_(io) {}

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
        self->connect(std::move(endpoints));
      });
}

void Connector::cancel() {
  connected_ = nullptr;
  resolver_.cancel();
  timer_.cancel();
  attempts_.clear();
  if (stream_.has_value()) stream_->close();
}

void Connector::connect(std::vector<Tcp::endpoint> endpoints) {
  const bool v6 = endpoints.front().address().is_v6();
  endpoints_ = take_turns(std::move(endpoints),
                          [v6](const Tcp::endpoint& to) { return to.address().is_v6() == v6; });
  race_ = AddressRace(endpoints_.size());
  race();
}

void Connector::race() {
  if (race_.lost()) {
    return finish(std::nullopt,
                  {ErrorCode::kUnavailable, fmt::format("cannot connect to {}: {}", authority(url_),
                                                        last_error_.message())});
  }
  const AddressRace::Move move = race_.next(std::chrono::steady_clock::now());
  if (move.abandon) attempts_.erase(*move.abandon);
  if (move.start) attempt(*move.start);
  timer_.cancel();
  const std::optional<Time> wake = race_.wake();
  if (!wake) return;
  timer_.expires_at(*wake);
  timer_.async_wait([self = shared_from_this()](const Error& error) {
    if (!error && self->connected_ && !self->stream_) self->race();
  });
}

void Connector::attempt(std::size_t address) {
  Tcp::socket& socket = attempts_.emplace(address, io_).first->second;
  socket.async_connect(endpoints_[address],
                       [self = shared_from_this(), address](const Error& error) {
                         const auto at = self->attempts_.find(address);
                         if (at == self->attempts_.end())
                           return;  // abandoned, or another one was first
                         Tcp::socket connected = std::move(at->second);
                         if (!error) {
                           self->attempts_.clear();
                           self->timer_.cancel();
                           return self->handshake(std::move(connected));
                         }
                         self->attempts_.erase(at);
                         self->last_error_ = error;
                         self->race_.failed(address);
                         self->race();
                       });
}

void Connector::handshake(Tcp::socket socket) {
  stream_.emplace(std::move(socket), tls_);
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
