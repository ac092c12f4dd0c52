// The progress thread, and the commands that other threads give it.
#include "comm/ucx/ucx_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "comm/ucx/ucx_address.h"
#include "comm/ucx/ucx_connections.h"
#include "comm/ucx/ucx_devices.h"
#include "comm/ucx/ucx_support.h"

namespace tributary {
namespace {

using Clock = ucx::Connections::Clock;

/// The longest sleep: UCX's own timers (keepalive) run only in progress().
constexpr std::chrono::milliseconds kMaxSleep{1000};
/// The longest sleep while a hello waits for a socket of UCX: UCX's event descriptor does not
/// signal that.
constexpr std::chrono::milliseconds kGreetingPause{1};
/// How long to spin for the rest of a payload that is arriving. Over TCP the next part arrives
/// within about 30 us, and the sender pays for waking us. With this wait a layer of a step, whose
/// query and output are such payloads, takes a twentieth less time on two cores, and a GB of rows
/// takes a twentieth less of the sender's time. There is no spinning otherwise: with fewer idle
/// cores than threads it takes the core from the peer that is about to answer (half a round trip of
/// 8 bytes on two busy cores: 10 us without, 14 with 8 us, 51 with 40 us).
constexpr std::chrono::microseconds kMaxSpin{50};

/// A file descriptor that any thread makes readable.
class WakeUp {
 public:
  WakeUp() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) fail(ErrorCode::kIo, "eventfd: {}", std::generic_category().message(errno));
  }
  ~WakeUp() { ::close(fd_); }
  WakeUp(const WakeUp&) = delete;
  WakeUp& operator=(const WakeUp&) = delete;
  [[nodiscard]] int fd() const noexcept { return fd_; }
  void set() const noexcept { static_cast<void>(eventfd_write(fd_, 1)); }
  void clear() const noexcept {
    eventfd_t value = 0;
    static_cast<void>(eventfd_read(fd_, &value));
  }

 private:
  int fd_;
};

class UcxTransport final : public Transport {
 public:
  UcxTransport(TransportConfig config, TransportHandler& handler) : config_(std::move(config)) {
    if (config_.tls) fail(ErrorCode::kUnsupported, "UCX does not encrypt; comm/tcp does");
    std::promise<std::string> bound;
    std::future<std::string> address = bound.get_future();
    thread_ = std::thread(
        [this, &handler, bound = std::move(bound)]() mutable { run(handler, std::move(bound)); });
    try {
      address_ = address.get();
    } catch (...) {
      thread_.join();
      throw;
    }
  }

  ~UcxTransport() override {
    post(Stop{});
    thread_.join();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "ucx"; }
  [[nodiscard]] const std::string& address() const noexcept override { return address_; }

  [[nodiscard]] PeerId connect(const std::string& address,
                               const Introduction& introduction) override {
    const ucx::SocketAddress parsed = ucx::parse_address(address);
    const PeerId id = next_id_.fetch_add(1);
    post(Connect{id, parsed, introduction});
    return id;
  }
  void send(PeerId peer, OutgoingMessage message) override { post(Send{peer, std::move(message)}); }
  void disconnect(PeerId peer) override { post(Disconnect{peer}); }

 private:
  struct Connect {
    PeerId id;
    ucx::SocketAddress address;
    Introduction introduction;
  };
  struct Send {
    PeerId peer;
    OutgoingMessage message;
  };
  struct Disconnect {
    PeerId peer;
  };
  struct Stop {};
  using Command = std::variant<Send, Connect, Disconnect, Stop>;

  void post(Command command) {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    if (std::exchange(sleeping_, false)) wake_up_.set();
  }

  bool run_commands(ucx::Connections& connections) {
    {
      const std::lock_guard lock(mutex_);
      commands_.swap(taken_);
    }
    for (Command& command : taken_) {
      if (auto* send = std::get_if<Send>(&command)) {
        if (!stopped_) {
          connections.send(send->peer, std::move(send->message));
        } else {
          connections.call_later(send->message.sent,
                                 {ErrorCode::kUnavailable, "the transport has been closed"});
        }
      } else if (auto* connect = std::get_if<Connect>(&command)) {
        if (!stopped_) {
          connections.connect(connect->id, connect->address, connect->introduction);
        }
      } else if (auto* disconnect = std::get_if<Disconnect>(&command)) {
        connections.disconnect(disconnect->peer);
      } else if (std::holds_alternative<Stop>(command)) {
        stopped_ = true;
      }
    }
    const bool any = !taken_.empty();
    taken_.clear();
    return any;
  }

  /// UCX requires one thread for the whole life of a worker: the connections begin and end here.
  void run(TransportHandler& handler, std::promise<std::string> bound) {
    std::optional<ucx::Connections> connections;
    try {
      connections.emplace(config_, handler, next_id_);
    } catch (...) {
      return bound.set_exception(std::current_exception());
    }
    bound.set_value(connections->address());
    serve(*connections);
  }

  void serve(ucx::Connections& connections) {
    Clock::time_point last_busy;
    while (!stopped_) {
      bool busy = run_commands(connections);
      const Clock::time_point now = Clock::now();
      connections.check_deadlines(now);
      busy |= connections.progress(now);  // last: it makes the calls that the others scheduled
      if (busy) {
        last_busy = now;
        continue;
      }
      if (config_.busy_poll || (connections.receiving() && now - last_busy < kMaxSpin)) {
        // With fewer cores than threads a spinning thread would keep the others from working.
        std::this_thread::yield();
      } else {
        sleep(connections, now);
      }
    }
    connections.shut_down();
    // A `sent` that shut_down() called may have sent another message.
    while (run_commands(connections)) connections.shut_down();
  }

  void sleep(ucx::Connections& connections, Clock::time_point now) {
    {
      const std::lock_guard lock(mutex_);
      if (!commands_.empty()) return;
      sleeping_ = true;
    }
    if (connections.arm()) {
      const auto longest = connections.greeting() ? kGreetingPause : kMaxSleep;
      const auto until = std::min(connections.next_deadline(), now + longest);
      const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(until - now);
      std::array<pollfd, 3> fds{
          pollfd{.fd = connections.door_fd(), .events = POLLIN, .revents = 0},
          pollfd{.fd = connections.event_fd(), .events = POLLIN, .revents = 0},
          pollfd{.fd = wake_up_.fd(), .events = POLLIN, .revents = 0}};
      const auto limit = std::max<std::int64_t>(timeout.count(), 0);
      static_cast<void>(poll(fds.data(), fds.size(), static_cast<int>(limit)));
      if (fds.front().revents != 0) connections.look_at_door();
    }
    const std::lock_guard lock(mutex_);
    if (!std::exchange(sleeping_, false)) wake_up_.clear();
  }

  const TransportConfig config_;
  std::string address_;
  std::atomic<PeerId> next_id_{1};
  WakeUp wake_up_;
  std::mutex mutex_;
  std::vector<Command> commands_;  // bounded by the limits of the peers they go to
  bool sleeping_ = false;
  // Used by the progress thread only.
  std::vector<Command> taken_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(const TransportConfig& config,
                                              TransportHandler& handler) {
  return std::make_unique<UcxTransport>(config, handler);
}

std::string ucx_rdma_ports() {
  const std::string ports = ucx::rdma_ports();
  return ports.empty() ? ports : ucx::usable_ports(ports);
}

std::string ucx_version() {
  return ucp_get_version_string();
}

}  // namespace tributary
