// One WebSocket over Beast, for both sides: reads, queued writes, limits, the end.
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

namespace tributary {

struct WebSocketLimits {
  std::size_t max_message_bytes = 0;
  std::size_t max_backlog_bytes = 0;
  std::chrono::milliseconds idle_timeout{};
  std::chrono::milliseconds handshake_timeout{};
};

class WebSocketConnection;

/// What the user's handle and the connection share: messages on their way out, from any thread.
struct WebSocketOutbox {
  std::mutex mutex;
  std::deque<std::string> queue;
  std::size_t backlog_bytes = 0;  // queued and being written
  bool overflow = false;
  bool closing = false;
  bool woken = false;               // the connection will look
  std::atomic<bool> silent{false};  // no more calls of handlers
};

/// Belongs to the loop's thread. Lives by its own pending operations.
class WebSocketConnection : public std::enable_shared_from_this<WebSocketConnection> {
 public:
  using Request = boost::beast::http::request<boost::beast::http::string_body>;
  using Ready = std::function<void(const std::shared_ptr<WebSocket>&)>;
  using Connected = std::function<void(std::shared_ptr<WebSocket>, const Status&)>;

  WebSocketConnection(Stream stream, std::shared_ptr<LoopGate> gate, const WebSocketLimits& limits,
                      std::string remote);

  /// Answers the request for an upgrade; calls `ready` when that went well.
  void accept(Request request, Ready ready);
  /// Asks for the upgrade; calls `connected` with the outcome, unless abort() came before.
  void connect(const std::string& host, const std::string& target,
               const std::vector<HttpHeader>& headers, Connected connected);
  /// Keeps a server's place until the connection ends.
  void hold(ConnectionSet::Slot slot) { slot_ = std::move(slot); }

  void set_handlers(WebSocketHandlers handlers);
  /// Writes what is queued, as far as nothing is being written.
  void pump();
  /// Breaks off, without a call of a handler.
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
  /// Once: tells the user and lets go of the handlers.
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
  bool is_writing_ = false;
  bool is_closing_ = false;  // a close frame was sent, or is about to be
  bool is_finished_ = false;
  boost::beast::websocket::response_type response_;  // to a client's request
};

}  // namespace tributary
