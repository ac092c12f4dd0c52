// One WebSocket over Beast, for both sides: reads, queued writes, limits, close.
#pragma once

#include <atomic>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/websocket/stream.hpp>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "comm/http/connection_set.h"
#include "comm/http/event_loop_impl.h"
#include "comm/http/session_timer.h"
#include "comm/http/stream.h"
#include "comm/http/websocket.h"
#include "core/base/deadline.h"

namespace tributary {

struct WebSocketLimits {
  std::size_t max_message_bytes = 0;
  std::size_t max_backlog_bytes = 0;
  std::chrono::milliseconds idle_timeout{};
  std::chrono::milliseconds handshake_timeout{};
};

class WebSocketConnection;

/// The outgoing queue, shared by the user's handle and the connection. Used from any thread.
struct WebSocketOutbox {
  std::mutex mutex;
  std::deque<std::string> queue;
  std::size_t backlog_bytes = 0;  // queued and being written
  bool overflow = false;
  bool closing = false;
  bool woken = false;               // the connection is going to look at the queue
  std::atomic<bool> silent{false};  // handlers are not called any more
};

/// Used on the loop's thread. Its pending operations keep it alive.
class WebSocketConnection : public std::enable_shared_from_this<WebSocketConnection> {
 public:
  using Request = boost::beast::http::request<boost::beast::http::string_body>;
  using Ready = std::function<void(const std::shared_ptr<WebSocket>&)>;
  using Connected = std::function<void(std::shared_ptr<WebSocket>, const Status&)>;

  WebSocketConnection(Stream stream, std::shared_ptr<LoopGate> gate, const WebSocketLimits& limits,
                      std::string remote);

  /// Answers an upgrade request. Calls `ready` with the connection, or with null after refusing a
  /// bad request.
  void accept(Request request, Ready ready);
  /// Requests the upgrade. Calls `connected` with the result, unless abort() was called first.
  void connect(const std::string& host, const std::string& target,
               const std::vector<HttpHeader>& headers, Connected connected);
  /// Holds the server's slot until the connection ends.
  void hold(ConnectionSet::Slot slot) { slot_ = std::move(slot); }

  void set_handlers(WebSocketHandlers handlers);
  /// Writes the queue, unless a write is in progress.
  void pump();
  /// Disconnects without calling a handler.
  void abort();

 private:
  using Error = boost::system::error_code;
  using Code = boost::beast::websocket::close_code;

  [[nodiscard]] std::shared_ptr<WebSocket> make_handle();
  void configure(const std::vector<HttpHeader>& headers, bool server);
  void start(const std::function<void()>& hand_over);
  void read();
  void on_message();
  void write();
  void ended(const Error& error);
  void close(Code code);
  /// Tells the user once and drops the handlers.
  void finish(const Status& reason);

  boost::beast::websocket::stream<Stream, false> ws_;
  std::shared_ptr<LoopGate> gate_;
  WebSocketLimits limits_;
  std::string remote_;
  ConnectionSet::Slot slot_;
  SessionTimer close_timer_;
  std::shared_ptr<WebSocketOutbox> outbox_ = std::make_shared<WebSocketOutbox>();
  std::shared_ptr<WebSocketHandlers> handlers_ = std::make_shared<WebSocketHandlers>();
  boost::beast::flat_buffer buffer_;
  std::string writing_;
  Time heard_;  // the last message, ping or pong
  bool is_writing_ = false;
  bool is_closing_ = false;  // a close frame was sent, or is about to be
  bool is_finished_ = false;
  boost::beast::websocket::response_type response_;  // to a client's request
};

}  // namespace tributary
