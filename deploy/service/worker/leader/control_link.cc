#include "deploy/service/worker/leader/control_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>
#include <utility>
#include <variant>

#include "comm/http/websocket.h"
#include "deploy/service/protocol/patience.h"
#include "deploy/service/protocol/token_file.h"

namespace tributary {
namespace {

constexpr auto kHeartbeat = std::chrono::milliseconds(500);
constexpr auto kConnectTimeout = std::chrono::milliseconds(2'000);
// Pools reconnect soon after a control plane has restarted, without flooding it.
constexpr auto kFirstRetry = std::chrono::milliseconds(100);
/// A whole registration may wait to be sent.
constexpr std::size_t kMaxBacklogBytes = kMaxRegistrationBytes + (std::size_t{64} << 20);
constexpr std::size_t kMaxTold = 64;
/// A pool that ends waits no longer for a control plane to read its last word.
constexpr auto kGoodbyeTimeout = std::chrono::milliseconds(1'000);

bool final_refusal(ErrorCode code) {
  return code == ErrorCode::kPermissionDenied || code == ErrorCode::kUnsupported;
}

}  // namespace

/// Lives on the loop's thread.
class ControlLink::Impl {
 public:
  Impl(EventLoop& loop, ControlLinkConfig config, ControlLinkHandlers handlers)
      : loop_(loop), config_(std::move(config)), handlers_(std::move(handlers)) {
    config_.url.path = "/v1/pools/connect";
  }

  void start() {
    if (config_.signals) signal_ = loop_.on_termination(handlers_.terminate);
    heartbeat_ = loop_.every(kHeartbeat, [this] {
      if (registered_) send(handlers_.heartbeat());
    });
    connect();
  }

  /// Calls `ended` when nothing more is to be sent.
  void stop(std::function<void()> ended) {
    signal_.reset();
    heartbeat_.reset();
    retry_.reset();
    if (!socket_ || !said_goodbye_) return finish(ended);
    // The control plane closes the connection when it has read the last word.
    ended_ = std::move(ended);
    retry_ = loop_.after(kGoodbyeTimeout, [this] { finish(ended_); });
  }

  void send(const FromPool& word) {
    if (socket_) socket_->send(to_json(word));
    said_goodbye_ = said_goodbye_ || std::holds_alternative<Goodbye>(word);
  }

 private:
  void finish(const std::function<void()>& ended) {
    if (socket_) socket_->close();
    socket_.reset();
    ended();
  }

  void connect() {
    WebSocketClientConfig socket{.url = config_.url,
                                 .headers = {},
                                 .certificate_authority = config_.certificate_authority,
                                 .timeout = kConnectTimeout,
                                 .max_backlog_bytes = kMaxBacklogBytes};
    if (!config_.bearer_token.empty()) {
      socket.headers.push_back({"Authorization", "Bearer " + config_.bearer_token});
    }
    connect_websocket(
        loop_, socket, [this](std::shared_ptr<WebSocket> connected, const Status& status) {
          if (!connected) return lost(status);
          socket_ = std::move(connected);
          socket_->set_handlers({.message = [this](std::string_view text) { receive(text); },
                                 .closed = [this](const Status& reason) { lost(reason); }});
          RegisterPool pool = config_.pool;
          handlers_.describe(pool);
          for (const FromPool& word : registration(std::move(pool))) send(word);
        });
  }

  void lost(const Status& reason, bool refused = false) {
    socket_.reset();
    if (ended_) return ended_();
    if (said_goodbye_) return;  // a pool that registered again would be lost when it ends
    if (final_refusal(reason.code())) return handlers_.refused(reason);
    // Each reason is logged once, not at every try.
    if (told_.size() >= kMaxTold) told_.clear();
    if (told_.insert(reason.message()).second || registered_) {
      handlers_.log(fmt::format("{} at {}:{}: {}; trying again",
                                refused ? "refused by the control plane" : "no control plane",
                                config_.url.host, config_.url.port, reason.message()));
    }
    registered_ = false;
    retry_ = loop_.after(wait_, [this] { connect(); });
    wait_ = std::min<std::chrono::milliseconds>(2 * wait_, kPoolRetry);
  }

  void receive(std::string_view text) {
    Status status = status_of([&] {
      ToPool message = parse_to_pool(text);
      if (const auto* registered = std::get_if<Registered>(&message)) {
        answered(*registered);
        return;
      }
      const std::uint64_t request = std::visit(
          [](const auto& asked) -> std::uint64_t {
            if constexpr (requires { asked.request; }) return asked.request;
            return 0;
          },
          message);
      if (handlers_.request(std::move(message))) return;
      send(PoolReply{.request = request,
                     .code = ErrorCode::kUnavailable,
                     .message = "the pool's leader is behind",
                     .sequence = {}});
    });
    if (!status.ok()) drop(status);
  }

  void answered(const Registered& answer) {
    if (answer.code != ErrorCode::kOk) {
      drop({answer.code, answer.message}, true);
      return;
    }
    registered_ = true;
    told_.clear();
    wait_ = kFirstRetry;
    handlers_.log(fmt::format("registered as `{}` with the control plane at {}:{}",
                              config_.pool.name, config_.url.host, config_.url.port));
    send(handlers_.heartbeat());
  }

  /// Closes the socket later, since this runs inside one of its handlers.
  void drop(const Status& reason, bool refused = false) {
    if (dropping_) return;
    dropping_ = true;
    loop_.post([this, reason, refused] {
      dropping_ = false;
      if (socket_) socket_->close();
      lost(reason, refused);
    });
  }

  EventLoop& loop_;
  ControlLinkConfig config_;
  ControlLinkHandlers handlers_;
  std::shared_ptr<WebSocket> socket_;
  bool registered_ = false;
  std::set<std::string> told_;  // reasons, since it was registered
  bool dropping_ = false;
  std::chrono::milliseconds wait_ = kFirstRetry;
  std::unique_ptr<EventLoop::Timer> signal_, heartbeat_, retry_;
  bool said_goodbye_ = false;
  std::function<void()> ended_;  // while the last word is on its way
};

ControlLink::ControlLink(ControlLinkConfig config, ControlLinkHandlers handlers)
    : impl_(std::make_unique<Impl>(loop_, std::move(config), std::move(handlers))) {
  loop_.post([this] { impl_->start(); });
  thread_ = std::thread([this] { loop_.run(); });
}

ControlLink::~ControlLink() {
  loop_.post([this] { impl_->stop([this] { loop_.stop(); }); });
  thread_.join();
}

void ControlLink::tell(const FromPool& word) {
  loop_.post([this, word] { impl_->send(word); });
}

ConnectControl connect_by_link(const WorkerOptions& options, bool signals) {
  ControlLinkConfig config{.url = parse_url(options.control),
                           .bearer_token = {},
                           .certificate_authority = options.certificate_authority,
                           .pool = {},
                           .signals = signals};
  if (!options.token_file.empty()) config.bearer_token = read_token_file(options.token_file);
  return [config = std::move(config)](RegisterPool pool, ControlLinkHandlers handlers) {
    ControlLinkConfig mine = config;
    mine.pool = std::move(pool);
    return std::make_unique<ControlLink>(std::move(mine), std::move(handlers));
  };
}

}  // namespace tributary
