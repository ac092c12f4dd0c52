// An HTTP/1.1 server with limits, optional TLS, and WebSocket upgrades, on an EventLoop.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
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
  std::size_t max_body_bytes = std::size_t{320} * 1024;
  std::size_t max_header_bytes = std::size_t{8} * 1024;
  /// At this limit a new connection closes the one that has been idle for longest among those that
  /// are not trusted (HttpHandlers::is_trusted). If there is none, the new connection itself is
  /// closed.
  int max_connections = 256;
  std::chrono::milliseconds read_timeout{10'000};  // for a whole request, and between two
  std::chrono::milliseconds write_timeout{10'000};
  std::chrono::milliseconds response_timeout{30'000};  // for the handler; then 504
  std::size_t max_websocket_message_bytes = std::size_t{16} << 20;
  /// A WebSocket with more bytes queued is closed: the other side does not read.
  std::size_t max_websocket_backlog_bytes = std::size_t{64} << 20;
  /// A WebSocket that sends nothing for this long, not even a pong, is closed.
  std::chrono::milliseconds websocket_idle_timeout{5'000};
};

/// Sends the response to one request. Call it once, from any thread. Later calls are ignored, and
/// so is a call after the client has disconnected.
using HttpRespond = std::function<void(HttpResponse)>;

struct HttpHandlers {
  /// Called on the loop's thread. An exception becomes a 500 with code `internal`.
  std::function<void(const HttpRequest&, HttpRespond)> request;
  /// Decides on a request to upgrade to a WebSocket: returns a response to refuse it, or no value
  /// to accept it (`upgraded` gets the connection). Empty: no upgrades.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> may_upgrade;
  std::function<void(const HttpRequest&, std::shared_ptr<WebSocket>)> upgraded;
  /// Whether the request proves that its sender belongs here. From then on its connection is not
  /// closed to make room for others; a WebSocket never is. Empty: nobody is trusted.
  std::function<bool(const HttpRequest&)> is_trusted = {};
};

/// Counts of the fates of requests and connections since the start.
struct HttpTraffic {
  std::map<int, std::uint64_t> responses;  // by status; 101: a WebSocket
  std::uint64_t refused = 0;               // connections that were closed at once: no room
  std::uint64_t evicted = 0;               // that were closed, idle, to make room
  std::uint64_t timed_out = 0;             // that were closed: silent, or not reading, for too long
};

/// Requests that the server itself refuses get the JSON body {"error": {"code", "message"}}: 400
/// `malformed_input`, 413 `too_large`, 431 `too_large`, 504 `deadline_exceeded`. A request that is
/// not complete within read_timeout gets 408 `deadline_exceeded`, and the connection is closed.
class HttpServer {
 public:
  /// Listens at once and serves while the loop runs. Throws kInvalidArgument for a bad address or
  /// TLS file, kIo when the address cannot be bound. The loop outlives the server. Destroy the
  /// server on the loop's thread, or while the loop does not run.
  HttpServer(EventLoop& loop, const HttpServerConfig& config, HttpHandlers handlers);
  ~HttpServer();

  /// The bound address, "ADDRESS:PORT".
  [[nodiscard]] const std::string& address() const noexcept;
  /// Open connections, WebSockets included. May be called from any thread.
  [[nodiscard]] int connections() const noexcept;
  /// Used on the loop's thread.
  [[nodiscard]] const HttpTraffic& traffic() const noexcept;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

/// Whether "ADDRESS:PORT" names a loopback address (127.0.0.0/8, ::1 or `localhost`). Throws
/// kInvalidArgument.
[[nodiscard]] bool is_loopback(const std::string& listen);

}  // namespace tributary
