// connect_websocket: name lookup, TLS and the upgrade, under one deadline.
#include <fmt/format.h>

#include <boost/asio/post.hpp>
#include <utility>

#include "comm/http/connector.h"
#include "comm/http/event_loop_impl.h"
#include "comm/http/http_text.h"
#include "comm/http/session_timer.h"
#include "comm/http/websocket.h"
#include "comm/http/websocket_connection.h"
#include "core/base/quote.h"

namespace tributary {
namespace {

class Attempt : public std::enable_shared_from_this<Attempt> {
 public:
  using Connected = WebSocketConnection::Connected;

  Attempt(EventLoop::Impl& loop, WebSocketClientConfig config, Connected connected)
      : loop_(loop),
        config_(std::move(config)),
        connected_(std::move(connected)),
        timer_(loop.io.get_executor()) {}

  void start() {
    TlsContext tls;
    const Status bad = status_of([&] {
      check_headers();
      tls = tls_for(config_.url, config_.certificate_authority);
    });
    if (!bad.ok()) return finish(nullptr, bad);
    timer_.arm(config_.timeout, [self = shared_from_this()] { self->expire(); });
    connector_ = std::make_shared<Connector>(loop_.io, config_.url, std::move(tls));
    connector_->start(
        [self = shared_from_this()](std::optional<Stream> stream, const Status& status) {
          if (!stream.has_value()) return self->finish(nullptr, status);
          self->upgrade(std::move(*stream));
        });
  }

 private:
  void check_headers() const {
    for (const HttpHeader& header : config_.headers) {
      if (!is_header(header)) {
        fail(ErrorCode::kInvalidArgument,
             "header {} of a WebSocket contains a line break or the like", quote(header.name));
      }
    }
  }

  void upgrade(Stream stream) {
    connector_ = nullptr;
    const WebSocketLimits limits{config_.max_message_bytes, config_.max_backlog_bytes,
                                 config_.idle_timeout, config_.timeout};
    connection_ = std::make_shared<WebSocketConnection>(std::move(stream), loop_.gate, limits,
                                                        authority(config_.url));
    connection_->connect(
        authority(config_.url), config_.url.path, config_.headers,
        [self = shared_from_this()](std::shared_ptr<WebSocket> socket, const Status& status) {
          self->finish(std::move(socket), status);
        });
  }

  void expire() {
    if (connector_ != nullptr) connector_->cancel();
    if (connection_ != nullptr) connection_->abort();
    finish(nullptr, {ErrorCode::kDeadlineExceeded,
                     fmt::format("no WebSocket with {} within {} ms", authority(config_.url),
                                 config_.timeout.count())});
  }

  void finish(std::shared_ptr<WebSocket> socket, const Status& status) {
    timer_.disarm();
    connector_ = nullptr;
    connection_ = nullptr;
    if (const Connected connected = std::exchange(connected_, nullptr)) {
      connected(std::move(socket), status);
    }
  }

  EventLoop::Impl& loop_;
  WebSocketClientConfig config_;
  Connected connected_;
  SessionTimer timer_;
  std::shared_ptr<Connector> connector_;
  std::shared_ptr<WebSocketConnection> connection_;
};

}  // namespace

void connect_websocket(EventLoop& loop, const WebSocketClientConfig& config,
                       std::function<void(std::shared_ptr<WebSocket>, const Status&)> connected) {
  auto attempt = std::make_shared<Attempt>(loop.impl(), config, std::move(connected));
  boost::asio::post(loop.impl().io, [attempt] { attempt->start(); });
}

}  // namespace tributary
