#include "comm/http/http_session.h"

#include <fmt/format.h>

#include <boost/asio/write.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/websocket/rfc6455.hpp>
#include <utility>

#include "comm/http/http_text.h"
#include "comm/http/websocket_connection.h"

namespace tributary {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

namespace {

constexpr std::size_t kReadBytes = 4096;
constexpr std::chrono::milliseconds kCancelAgain{10};
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

/// The request as a plain value. No value if its target, Host or encoding is bad.
std::optional<HttpRequest> to_request(const http::request<http::string_body>& message) {
  auto target = parse_target(view(message.target()));
  // RFC 9112, 3.2: one Host, in HTTP/1.1.
  if (!target.has_value() || message.count(http::field::host) > 1 ||
      (message.version() >= 11 && message.count(http::field::host) == 0)) {
    return std::nullopt;
  }
  // We support one transfer coding. With a wrong guess the body would be read as the next request.
  const auto coding = message.find(http::field::transfer_encoding);
  if (coding != message.end() && !beast::iequals(coding->value(), "chunked")) return std::nullopt;
  HttpRequest request;
  request.method =
      message.method() == http::verb::head ? "GET" : std::string(view(message.method_string()));
  request.path = std::move(target->path);
  request.query = std::move(target->query);
  for (const auto& field : message) {
    request.headers.push_back(
        {std::string(view(field.name_string())), std::string(view(field.value()))});
  }
  return request;
}

}  // namespace

HttpSession::HttpSession(std::shared_ptr<HttpService> service, Stream stream, std::string remote)
    : service_(std::move(service)),
      stream_(std::move(stream)),
      slot_(service_->connections->add()),
      timer_(stream_.get_executor()),
      remote_(std::move(remote)),
      // The parser refuses longer headers. The rest is for reading the body.
      buffer_(service_->config.max_header_bytes + 16 * kReadBytes) {}

void HttpSession::start() {
  slot_.on_abort([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->abort();
  });
  slot_.set_evictable(true);
  timer_.arm(service_->config.read_timeout, [self = shared_from_this()] { self->time_out(); });
  stream_.handshake_as_server([self = shared_from_this()](const Error& error) {
    if (error) return self->abort();
    self->await_request();
  });
}

void HttpSession::await_request() {
  if (service_->handlers == nullptr) return abort();
  slot_.set_evictable(!trusted_);
  if (buffer_.size() > 0) return read_header();
  timer_.arm(service_->config.read_timeout, [self = shared_from_this()] { self->time_out(); });
  stream_.async_read_some(buffer_.prepare(kReadBytes),
                          [self = shared_from_this()](const Error& error, std::size_t bytes) {
                            if (error) return self->abort();
                            self->buffer_.commit(bytes);
                            self->read_header();
                          });
}

void HttpSession::read_header() {
  parser_.emplace();
  parser_->header_limit(static_cast<std::uint32_t>(service_->config.max_header_bytes));
  parser_->body_limit(service_->config.max_body_bytes);
  head_ = false;
  expired_ = false;
  // One deadline for the whole request: slow bytes do not extend it.
  timer_.arm(service_->config.read_timeout, [self = shared_from_this()] { self->expire(); });
  http::async_read_header(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const Error& error, std::size_t) { self->on_header(error); });
}

/// Ends the read of a request. A part of it that has just arrived is not cancelled, and the read
/// goes on to wait for the next: so it is cancelled again, until the answer has a deadline of its
/// own.
void HttpSession::expire() {
  expired_ = true;
  stream_.cancel();
  timer_.arm(kCancelAgain, [self = shared_from_this()] { self->expire(); });
}

void HttpSession::on_header(const Error& error) {
  if (error || expired_) return refuse_reading(error);
  if (parser_->is_done()) return on_request({});
  const auto& expect = parser_->get()[http::field::expect];
  if (!beast::iequals(expect, "100-continue") || parser_->get().version() < 11) return read_body();
  asio::async_write(stream_, asio::buffer(kContinue),
                    [self = shared_from_this()](const Error& failed, std::size_t) {
                      if (failed) return self->refuse_reading(failed);
                      self->read_body();
                    });
}

void HttpSession::read_body() {
  http::async_read(
      stream_, buffer_, *parser_,
      [self = shared_from_this()](const Error& error, std::size_t) { self->on_request(error); });
}

void HttpSession::on_request(const Error& error) {
  if (error || expired_) return refuse_reading(error);
  timer_.disarm();
  if (service_->handlers == nullptr) return abort();
  auto& message = parser_->get();
  head_ = message.method() == http::verb::head;
  auto request = to_request(message);
  if (!request.has_value()) {
    return refuse(400, "malformed_input", "the target, Host or Transfer-Encoding is malformed");
  }
  request->body = std::move(message.body());
  request->remote = remote_;
  trusted_ =
      trusted_ || (service_->handlers->is_trusted && service_->handlers->is_trusted(*request));
  slot_.set_evictable(false);  // while it is answered
  const bool upgrades = service_->handlers->may_upgrade && service_->handlers->upgraded;
  if (upgrades && beast::websocket::is_upgrade(message)) return upgrade(std::move(*request));
  call_handler(*request);
}

void HttpSession::call_handler(const HttpRequest& request) {
  awaiting_ = true;
  const std::uint64_t exchange = ++exchange_;
  timer_.arm(service_->config.response_timeout, [self = shared_from_this()] {
    self->refuse(
        504, "deadline_exceeded",
        fmt::format("no answer within {} ms", self->service_->config.response_timeout.count()));
  });
  // Always through the gate, even on the loop's thread: a response from inside the handler, or
  // after the server is gone, takes the same path as any other.
  HttpRespond respond = [gate = service_->gate, weak = weak_from_this(),
                         exchange](HttpResponse response) {
    gate->post([weak, exchange, response = std::move(response)]() mutable {
      if (const auto self = weak.lock()) self->answer(exchange, std::move(response));
    });
  };
  const auto handlers = service_->handlers;  // the handler may destroy the server
  const Status failed = status_of([&] { handlers->request(request, std::move(respond)); });
  if (!failed.ok() && awaiting_) refuse(500, "internal", failed.message());
}

void HttpSession::upgrade(HttpRequest request) {
  const auto handlers = service_->handlers;
  std::optional<HttpResponse> refusal;
  const Status failed = status_of([&] { refusal = handlers->may_upgrade(request); });
  if (!failed.ok()) return refuse(500, "internal", failed.message());
  if (service_->handlers == nullptr) return abort();
  if (refusal.has_value()) return write(std::move(*refusal), parser_->get().keep_alive());
  if (buffer_.size() > 0) {
    return refuse(400, "malformed_input", "bytes after a request for a WebSocket");
  }
  const HttpServerConfig& config = service_->config;
  WebSocketLimits limits{config.max_websocket_message_bytes, config.max_websocket_backlog_bytes,
                         config.websocket_idle_timeout, config.read_timeout};
  auto connection =
      std::make_shared<WebSocketConnection>(std::move(stream_), service_->gate, limits, remote_);
  slot_.on_abort([weak = std::weak_ptr(connection)] {
    if (const auto alive = weak.lock()) alive->abort();
  });
  connection->hold(std::move(slot_));
  connection->accept(parser_->release(), [service = service_, request = std::move(request)](
                                             const std::shared_ptr<WebSocket>& socket) {
    ++service->traffic.responses[socket != nullptr ? 101 : 400];
    if (socket == nullptr) return;
    // A copy: the handler may destroy the server.
    if (const auto current = service->handlers) current->upgraded(request, socket);
  });
}

void HttpSession::refuse_reading(const Error& error) {
  if (service_->handlers == nullptr) return abort();
  const HttpServerConfig& config = service_->config;
  if (expired_) {
    return refuse(
        408, "deadline_exceeded",
        fmt::format("the request was not complete within {} ms", config.read_timeout.count()));
  }
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return refuse(431, "too_large",
                  fmt::format("more than {} bytes of headers", config.max_header_bytes));
  }
  if (error == http::error::body_limit) {
    return refuse(413, "too_large",
                  fmt::format("a body of more than {} bytes", config.max_body_bytes));
  }
  const bool ended = error == http::error::end_of_stream || error == http::error::partial_message;
  if (!ended && error.category() == make_error_code(http::error::bad_method).category()) {
    return refuse(400, "malformed_input", error.message());
  }
  abort();
}

void HttpSession::refuse(int status, std::string_view code, std::string_view message) {
  awaiting_ = false;
  write(error_response(status, code, message), false);
}

void HttpSession::answer(std::uint64_t exchange, HttpResponse response) {
  if (!awaiting_ || exchange != exchange_) return;
  awaiting_ = false;
  if (service_->handlers == nullptr) return abort();
  if (!is_sendable(response)) {
    return refuse(500, "internal", "the answer has a status or a header that cannot be sent");
  }
  write(std::move(response), parser_->get().keep_alive());
}

void HttpSession::write(HttpResponse response, bool keep_alive) {
  const bool old = parser_->is_header_done() && parser_->get().version() < 11;
  out_head_ = response_head(response, {keep_alive, old});
  out_body_ = head_ || !has_body(response.status) ? std::string() : std::move(response.body);
  ++service_->traffic.responses[response.status];
  slot_.set_evictable(!trusted_);  // the client may never read it
  timer_.arm(service_->config.write_timeout, [self = shared_from_this()] { self->time_out(); });
  const std::array<asio::const_buffer, 2> text{asio::buffer(out_head_), asio::buffer(out_body_)};
  asio::async_write(stream_, text,
                    [self = shared_from_this(), keep_alive](const Error& error, std::size_t) {
                      self->out_body_ = {};
                      if (error) return self->abort();
                      if (keep_alive) return self->await_request();
                      self->finish();
                    });
}

void HttpSession::finish() {
  timer_.disarm();
  stream_.finish([self = shared_from_this()](const Error&) {});  // holds its slot until then
}

void HttpSession::time_out() {
  ++service_->traffic.timed_out;
  stream_.close();
}

void HttpSession::abort() {
  awaiting_ = false;
  timer_.disarm();
  stream_.close();
}

}  // namespace tributary
