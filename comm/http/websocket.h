// One WebSocket connection (RFC 6455), text messages only, from either side.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/http/event_loop.h"
#include "comm/http/http_message.h"
#include "comm/http/url.h"
#include "core/base/error.h"

namespace tributary {

/// A `message` handler that throws ends the connection: the other side sees close code 1011, and
/// `closed` is called with the exception's code and text.
struct WebSocketHandlers {
  std::function<void(std::string_view text)> message;  // on the loop's thread
  /// Once, on the loop's thread: closed by the other side, failed, or silent for too long (pings
  /// go out by themselves). Not called after our own close().
  std::function<void(const Status& reason)> closed;
};

class WebSocket {
 public:
  virtual ~WebSocket() = default;  // closes, without a call of a handler
  /// Before the first message can arrive: in the `upgraded` or `connected` call.
  virtual void set_handlers(WebSocketHandlers handlers) = 0;
  /// Queued; from any thread. Dropped once the connection has ended.
  virtual void send(std::string text) = 0;
  /// After what is queued, within two seconds; from any thread.
  virtual void close() = 0;
  [[nodiscard]] virtual const std::string& remote() const noexcept = 0;
};

/// Connects from the loop, which outlives the attempt; it cannot be called off, so what `connected`
/// needs must still be there (a weak_ptr, say). `connected` is called once on the loop's thread:
/// with the connection, or with null and why not (an HTTP answer other than the upgrade gives its
/// status and body).
struct WebSocketClientConfig {
  Url url;
  std::vector<HttpHeader> headers;
  std::string certificate_authority;  // PEM file; empty: the system's
  std::chrono::milliseconds timeout{5'000};
  std::size_t max_message_bytes = std::size_t{16} << 20;
  std::size_t max_backlog_bytes = std::size_t{64} << 20;
  /// Without a byte from the other side, not even the answer to a ping: closed.
  std::chrono::milliseconds idle_timeout{5'000};
};
void connect_websocket(EventLoop& loop, const WebSocketClientConfig& config,
                       std::function<void(std::shared_ptr<WebSocket>, const Status&)> connected);

}  // namespace tributary
