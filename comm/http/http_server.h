// An HTTP/1.1 server with limits, optional TLS, and WebSocket upgrades, on an EventLoop.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "comm/http/event_loop.h"
#include "comm/http/http_message.h"
#include "comm/http/websocket.h"

namespace tributary {

struct HttpServerConfig {
  std::string listen = "127.0.0.1:0";  // "ADDRESS:PORT", "[v6]:PORT"; port 0: any
  struct Tls {
    std::filesystem::path certificate;  // PEM, with its chain
    std::filesystem::path key;          // PEM
  };
  std::optional<Tls> tls;
  std::size_t max_body_bytes = std::size_t{64} * 1024;
  std::size_t max_header_bytes = std::size_t{8} * 1024;
  int max_connections = 256;                       // further ones are closed at once
  std::chrono::milliseconds read_timeout{10'000};  // one whole request, and between two
  std::chrono::milliseconds write_timeout{10'000};
  std::chrono::milliseconds response_timeout{30'000};  // of the handler; then 504
  std::size_t max_websocket_message_bytes = std::size_t{16} << 20;
  /// Bytes queued towards a WebSocket that does not read, before it is closed.
  std::size_t max_websocket_backlog_bytes = std::size_t{64} << 20;
  /// A WebSocket from which nothing comes for that long, not even the answer to a ping, is closed.
  std::chrono::milliseconds websocket_idle_timeout{5'000};
};

/// Answers one request: exactly once, from any thread; later calls are ignored, as is one after the
/// client has gone.
using HttpRespond = std::function<void(HttpResponse)>;

struct HttpHandlers {
  /// On the loop's thread. An exception becomes a 500 with code `internal`.
  std::function<void(const HttpRequest&, HttpRespond)> request;
  /// A request to upgrade to a WebSocket. Returns what to answer instead, or accepts the connection
  /// (`accept` gives it) with no value. Empty: no upgrades.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> may_upgrade;
  std::function<void(const HttpRequest&, std::shared_ptr<WebSocket>)> upgraded;
};

/// What the server itself refuses is answered with JSON {"error": {"code", "message"}}: 400
/// `malformed_input`, 413 `too_large`, 431 `too_large`, 504 `deadline_exceeded`; a request that is
/// not complete within read_timeout is closed with 408 `deadline_exceeded`.
class HttpServer {
 public:
  /// Listens at once, serves while the loop runs. Throws kInvalidArgument for a bad address or TLS
  /// file, kIo when the address cannot be bound. The loop outlives the server; destroyed on the
  /// loop's thread or when the loop does not run.
  HttpServer(EventLoop& loop, const HttpServerConfig& config, HttpHandlers handlers);
  ~HttpServer();

  /// As bound: "ADDRESS:PORT".
  [[nodiscard]] const std::string& address() const noexcept;
  /// Open ones, WebSockets included; from any thread.
  [[nodiscard]] int connections() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Whether "ADDRESS:PORT" names a loopback address (127.0.0.0/8, ::1 or `localhost`). Throws
/// kInvalidArgument.
[[nodiscard]] bool is_loopback(const std::string& listen);

}  // namespace tributary
