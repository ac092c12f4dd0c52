#include "comm/http/websocket_connection.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/write.hpp>
#include <boost/beast/websocket/error.hpp>
#include <utility>

namespace tributary {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace websocket = boost::beast::websocket;

namespace {

// The time from our close() to the end of the connection: for the queue and the peer's close frame.
constexpr std::chrono::milliseconds kCloseTimeout{2'000};
// Large messages are sent in frames of this size, so that pings can go between them.
constexpr std::size_t kFrameBytes = std::size_t{64} << 10;

class WebSocketHandle final : public WebSocket {
 public:
  WebSocketHandle(std::weak_ptr<WebSocketConnection> connection, std::shared_ptr<LoopGate> gate,
                  std::shared_ptr<WebSocketOutbox> outbox, std::size_t max_backlog_bytes,
                  std::string remote)
      : connection_(std::move(connection)),
        gate_(std::move(gate)),
        outbox_(std::move(outbox)),
        max_backlog_bytes_(max_backlog_bytes),
        remote_(std::move(remote)) {}
  ~WebSocketHandle() override { shut(); }
  WebSocketHandle(const WebSocketHandle&) = delete;
  WebSocketHandle& operator=(const WebSocketHandle&) = delete;

  void set_handlers(WebSocketHandlers handlers) override {
    if (const auto connection = connection_.lock()) connection->set_handlers(std::move(handlers));
  }

  void send(std::string text) override {
    {
      const std::lock_guard lock(outbox_->mutex);
      if (outbox_->closing || outbox_->overflow) return;
      outbox_->backlog_bytes += text.size();
      if (outbox_->backlog_bytes > max_backlog_bytes_) {
        outbox_->overflow = true;
        outbox_->queue.clear();
      } else {
        outbox_->queue.push_back(std::move(text));
      }
      if (std::exchange(outbox_->woken, true)) return;
    }
    wake();
  }

  void close() override { shut(); }
  [[nodiscard]] const std::string& remote() const noexcept override { return remote_; }

 private:
  void shut() {
    outbox_->silent = true;
    {
      const std::lock_guard lock(outbox_->mutex);
      if (std::exchange(outbox_->closing, true)) return;
      if (std::exchange(outbox_->woken, true)) return;
    }
    wake();
  }

  void wake() {
    gate_->post([weak = connection_] {
      if (const auto connection = weak.lock()) connection->pump();
    });
  }

  std::weak_ptr<WebSocketConnection> connection_;
  std::shared_ptr<LoopGate> gate_;
  std::shared_ptr<WebSocketOutbox> outbox_;
  std::size_t max_backlog_bytes_;
  std::string remote_;
};

/// The reason why an upgrade failed: the server's response, or the error on the way.
Status refusal(const boost::system::error_code& error, const websocket::response_type& response,
               const std::string& remote) {
  if (error != websocket::error::upgrade_declined) {
    const ErrorCode code =
        error == beast::error::timeout ? ErrorCode::kDeadlineExceeded : ErrorCode::kUnavailable;
    return {code, fmt::format("WebSocket to {}: {}", remote, error.message())};
  }
  const unsigned status = response.result_int();
  const bool denied = status == 401 || status == 403;
  return {denied ? ErrorCode::kPermissionDenied : ErrorCode::kUnavailable,
          fmt::format("{} answered {}: {}", remote, status, response.body())};
}

}  // namespace

WebSocketConnection::WebSocketConnection(Stream stream, std::shared_ptr<LoopGate> gate,
                                         const WebSocketLimits& limits, std::string remote)
    : ws_(std::move(stream)),
      gate_(std::move(gate)),
      limits_(limits),
      remote_(std::move(remote)),
      close_timer_(ws_.get_executor()) {}

std::shared_ptr<WebSocket> WebSocketConnection::make_handle() {
  return std::make_shared<WebSocketHandle>(weak_from_this(), gate_, outbox_,
                                           limits_.max_backlog_bytes, remote_);
}

void WebSocketConnection::configure(const std::vector<HttpHeader>& headers, bool server) {
  // Beast sends a ping by itself after half of the idle time.
  ws_.set_option(
      websocket::stream_base::timeout{limits_.handshake_timeout, limits_.idle_timeout, true});
  ws_.read_message_max(limits_.max_message_bytes);
  ws_.write_buffer_bytes(kFrameBytes);
  ws_.set_option(websocket::stream_base::decorator([headers, server](auto& message) {
    message.set(server ? http::field::server : http::field::user_agent, "tributary");
    for (const HttpHeader& header : headers) message.set(header.name, header.value);
  }));
}

void WebSocketConnection::accept(Request request, Ready ready) {
  configure({}, true);
  auto held = std::make_shared<Request>(std::move(request));
  ws_.async_accept(*held,
                   [self = shared_from_this(), held, ready = std::move(ready)](const Error& error) {
                     if (error) {
                       self->abort();
                       return ready(nullptr);
                     }
                     const auto handle = self->make_handle();
                     self->start([&] { ready(handle); });
                   });
}

void WebSocketConnection::connect(const std::string& host, const std::string& target,
                                  const std::vector<HttpHeader>& headers, Connected connected) {
  configure(headers, false);
  ws_.async_handshake(
      response_, host, target,
      [self = shared_from_this(), connected = std::move(connected)](const Error& error) {
        if (self->is_finished_) return;
        if (error) {
          const Status why = refusal(error, self->response_, self->remote_);
          self->abort();
          return connected(nullptr, why);
        }
        self->response_ = {};
        const auto handle = self->make_handle();
        self->start([&] { connected(handle, Status()); });
      });
}

void WebSocketConnection::start(const std::function<void()>& hand_over) {
  heard_ = std::chrono::steady_clock::now();
  ws_.control_callback([this](websocket::frame_type, beast::string_view) {
    heard_ = std::chrono::steady_clock::now();
  });
  const Status failed = status_of(hand_over);
  read();
  if (!failed.ok()) {
    finish(failed);
    close(Code::internal_error);
  }
}

void WebSocketConnection::set_handlers(WebSocketHandlers handlers) {
  if (!is_finished_) handlers_ = std::make_shared<WebSocketHandlers>(std::move(handlers));
}

void WebSocketConnection::read() {
  ws_.async_read(buffer_, [self = shared_from_this()](const Error& error, std::size_t) {
    if (error) return self->ended(error);
    self->heard_ = std::chrono::steady_clock::now();
    self->on_message();
    self->read();
  });
}

void WebSocketConnection::on_message() {
  if (is_finished_ || outbox_->silent) {
    buffer_.clear();
    return;
  }
  if (!ws_.got_text()) {
    finish({ErrorCode::kMalformedInput, fmt::format("{} sent a binary message", remote_)});
    close(Code::unknown_data);
  } else if (const auto handlers = handlers_; handlers->message) {  // which may end this object
    const auto text = buffer_.cdata();
    const Status failed = status_of([&] {
      handlers->message({static_cast<const char*>(text.data()), text.size()});
    });
    if (!failed.ok()) {
      finish(failed);
      close(Code::internal_error);
    }
  }
  buffer_.clear();
}

void WebSocketConnection::pump() {
  bool overflow = false;
  bool closing = false;
  bool next = false;
  {
    const std::lock_guard lock(outbox_->mutex);
    outbox_->woken = false;
    overflow = outbox_->overflow;
    closing = outbox_->closing;
    next = !overflow && !is_writing_ && !is_closing_ && !outbox_->queue.empty();
    if (next) {
      writing_ = std::move(outbox_->queue.front());
      outbox_->queue.pop_front();
    }
  }
  if (overflow) {
    finish({ErrorCode::kUnavailable, fmt::format("{} does not read: more than {} bytes wait for it",
                                                 remote_, limits_.max_backlog_bytes)});
    return abort();
  }
  if (closing) {
    handlers_ = std::make_shared<WebSocketHandlers>();
    if (!is_closing_)
      close_timer_.arm(kCloseTimeout, [self = shared_from_this()] { self->abort(); });
  }
  if (next) {
    write();
  } else if (closing && !is_writing_) {
    close(Code::normal);
  }
}

void WebSocketConnection::write() {
  is_writing_ = true;
  ws_.text(true);
  ws_.async_write(asio::buffer(writing_),
                  [self = shared_from_this()](const Error& error, std::size_t) {
                    self->is_writing_ = false;
                    if (error) return self->ended(error);
                    {
                      const std::lock_guard lock(self->outbox_->mutex);
                      self->outbox_->backlog_bytes -= self->writing_.size();
                    }
                    self->writing_ = {};
                    self->pump();
                  });
}

void WebSocketConnection::close(Code code) {
  if (is_closing_) return;
  is_closing_ = true;
  close_timer_.arm(kCloseTimeout, [self = shared_from_this()] { self->abort(); });
  ws_.async_close(code, [self = shared_from_this()](const Error&) { self->close_timer_.disarm(); });
}

void WebSocketConnection::ended(const Error& error) {
  if (error == websocket::error::closed) {
    finish({ErrorCode::kUnavailable,
            fmt::format("{} closed the WebSocket: {} {}", remote_, ws_.reason().code,
                        std::string_view(ws_.reason().reason.data(), ws_.reason().reason.size()))});
  } else if (error == beast::error::timeout) {
    // Beast checks at intervals of half the timeout: the silence was between half and the whole of
    // it.
    const auto silence = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - heard_);
    finish({ErrorCode::kDeadlineExceeded,
            fmt::format("nothing from {} for {} ms", remote_, silence.count())});
  } else if (error == websocket::error::message_too_big) {
    finish({ErrorCode::kTooLarge, fmt::format("{} sent a message of more than {} bytes", remote_,
                                              limits_.max_message_bytes)});
  } else {
    // Where the network is cut nothing is known of the peer: that is silence, too.
    const bool cut = error == asio::error::timed_out || error == asio::error::host_unreachable ||
                     error == asio::error::network_unreachable;
    finish({cut ? ErrorCode::kDeadlineExceeded : ErrorCode::kUnavailable,
            fmt::format("WebSocket with {}: {}", remote_, error.message())});
  }
  abort();
}

void WebSocketConnection::finish(const Status& reason) {
  if (std::exchange(is_finished_, true)) return;
  const auto handlers = std::exchange(handlers_, std::make_shared<WebSocketHandlers>());
  {
    const std::lock_guard lock(outbox_->mutex);
    outbox_->closing = true;  // what is sent from now on is dropped
    outbox_->queue.clear();
  }
  if (!outbox_->silent && handlers->closed) handlers->closed(reason);
}

void WebSocketConnection::abort() {
  outbox_->silent = true;
  finish({});
  close_timer_.disarm();
  ws_.next_layer().close();
}

}  // namespace tributary
