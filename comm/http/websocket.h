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

/// If `message` throws, the connection ends: the peer gets close code 1011, and `closed` is called
/// with the exception's code and text.
struct WebSocketHandlers {
  std::function<void(std::string_view text)> message;  // on the loop's thread
  /// Called once, on the loop's thread, when the peer closed the connection, it failed, or the peer
  /// was silent for too long (pings are sent automatically). Not called after our own close().
  std::function<void(const Status& reason)> closed;
};

class WebSocket {
 public:
  virtual ~WebSocket() = default;  // closes without calling a handler
  /// Call this inside the `upgraded` or `connected` call, before the first message can arrive.
  virtual void set_handlers(WebSocketHandlers handlers) = 0;
  /// Queues the text. Any thread may call. Dropped after the connection has ended.
  virtual void send(std::string text) = 0;
  /// Closes after the queue is sent, within two seconds. Any thread may call.
  virtual void close() = 0;
  [[nodiscard]] virtual const std::string& remote() const noexcept = 0;
};

/// Connects on the loop, which outlives the attempt. The attempt cannot be cancelled, so
/// `connected` must not use objects that may be gone (hold a weak_ptr, for example). It is called
/// once on the loop's thread, with the connection, or with null and the reason (the status and body
/// of an HTTP response that refuses the upgrade).
struct WebSocketClientConfig {
  Url url;
  std::vector<HttpHeader> headers;
  std::string certificate_authority;  // PEM file; empty: the system's
  std::chrono::milliseconds timeout{5'000};
  std::size_t max_message_bytes = std::size_t{16} << 20;
  std::size_t max_backlog_bytes = std::size_t{64} << 20;
  /// A connection whose peer sends nothing for this long, not even a pong, is closed.
  std::chrono::milliseconds idle_timeout{5'000};
};
void connect_websocket(EventLoop& loop, const WebSocketClientConfig& config,
                       std::function<void(std::shared_ptr<WebSocket>, const Status&)> connected);

}  // namespace tributary
