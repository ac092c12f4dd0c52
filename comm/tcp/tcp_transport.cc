// A transport's calls, which are posted to the thread that runs its loop.
#include "comm/tcp/tcp_transport.h"

#include <fmt/format.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <string>
#include <thread>
#include <utility>

#include "comm/http/io_context.h"
#include "comm/tcp/shared_loop.h"
#include "comm/tcp/tcp_address.h"
#include "comm/tcp/tcp_peers.h"

namespace tributary {
namespace {

namespace asio = boost::asio;

class TcpTransport final : public Transport {
 public:
  TcpTransport(TransportConfig config, TransportHandler& handler)
      : config_(std::move(config)),
        peers_(io_.get(), config_, handler, next_id_, direct_),
        address_(peers_.address()),
        work_(io_.get().get_executor()),
        loop_(io_.get(), config_.busy_poll),
        thread_([this] { loop_.run(); }) {
    asio::post(io_.get(), [this] { peers_.start(); });
  }

  /// The thread ends when every operation has returned.
  ~TcpTransport() override {
    asio::post(io_.get(), [this] {
      peers_.stop();
      work_.reset();
    });
    loop_.end();
    thread_.join();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "tcp"; }
  [[nodiscard]] const std::string& address() const noexcept override { return address_; }

  [[nodiscard]] PeerId connect(const std::string& address,
                               const Introduction& introduction) override {
    const auto to = tcp::parse_address(address);
    const PeerId id = next_id_.fetch_add(1);
    direct_.add(id);
    asio::post(io_.get(), [this, id, to, introduction] { peers_.connect(id, to, introduction); });
    return id;
  }
  void send(PeerId peer, OutgoingMessage message) override {
    const auto direct = direct_.find(peer);
    const auto left = direct == nullptr ? tcp::Sent::kClosed : direct->send(message);
    if (left == tcp::Sent::kWaiting) {
      asio::post(io_.get(), [this, peer] { peers_.send_waiting(peer); });
    } else if (left == tcp::Sent::kClosed && message.sent) {
      asio::post(io_.get(), [peer, sent = std::move(message.sent)] {
        sent({ErrorCode::kNotFound, fmt::format("peer {}: not connected", peer)});
      });
    }
  }
  void disconnect(PeerId peer) override {
    if (const auto direct = direct_.find(peer)) direct->close();  // no later message is sent
    asio::post(io_.get(), [this, peer] { peers_.disconnect(peer); });
  }

  [[nodiscard]] bool work_until(Time until, const std::function<bool()>& done) override {
    return loop_.work_until(until, done);
  }
  void wake() override { loop_.wake(); }

 private:
  const TransportConfig config_;
  IoContext io_;
  std::atomic<PeerId> next_id_{1};
  tcp::DirectSenders direct_{config_};
  tcp::TcpPeers peers_;
  const std::string address_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  tcp::SharedLoop loop_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(const TransportConfig& config,
                                              TransportHandler& handler) {
  try {
    return std::make_unique<TcpTransport>(config, handler);
  } catch (const boost::system::system_error& error) {
    fail(ErrorCode::kIo, "a TCP transport cannot be opened: {}", error.code().message());
  }
}

}  // namespace tributary
