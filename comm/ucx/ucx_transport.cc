// The progress thread, and what other threads ask of it.
#include "comm/ucx/ucx_transport.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "comm/ucx/ucx_address.h"
#include "comm/ucx/ucx_connections.h"

namespace tributary {
namespace {

using Clock = ucx::Connections::Clock;

/// The longest sleep: UCX's own timers (keepalive) run in progress only.
constexpr std::chrono::milliseconds kMaxSleep{1000};
/// The same while a hello waits for UCX to have a socket for it: its event descriptor speaks of
/// what arrives, not of that.
constexpr std::chrono::milliseconds kGreetingPause{1};
/// How long the rest of a payload that is on its way is waited for without a sleep. Over TCP the
/// next part comes within some 30 us, and it is the sender who pays for waking us: with the wait a
/// layer of a step, whose query and output are such payloads, takes a twentieth less time on two
/// cores, and a GB of rows a twentieth less of the sender's. Never otherwise: with fewer idle cores
/// than threads the spinner keeps its core from the peer that is to answer (half a round trip of 8
/// bytes on two busy cores: 10 us without, 14 with 8 us, 51 with 40 us).
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
  UcxTransport(TransportConfig config, TransportHandler& handler)
      : config_(std::move(config)), connections_(config_, handler), thread_([this] { run(); }) {}

  ~UcxTransport() override {
    post(Stop{});
    thread_.join();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "ucx"; }
  [[nodiscard]] const std::string& address() const noexcept override {
    return connections_.address();
  }

  [[nodiscard]] PeerId connect(const std::string& address) override {
    const ucx::SocketAddress parsed = ucx::parse_address(address);
    const PeerId id = connections_.next_id();
    post(Connect{id, parsed});
    return id;
  }
  void send(PeerId peer, OutgoingMessage message) override { post(Send{peer, std::move(message)}); }
  void disconnect(PeerId peer) override { post(Disconnect{peer}); }

 private:
  struct Connect {
    PeerId id;
    ucx::SocketAddress address;
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

  bool run_commands() {
    {
      const std::lock_guard lock(mutex_);
      commands_.swap(taken_);
    }
    for (Command& command : taken_) {
      if (auto* send = std::get_if<Send>(&command)) {
        if (!stopped_) {
          connections_.send(send->peer, std::move(send->message));
        } else {
          connections_.call_later(send->message.sent,
                                  {ErrorCode::kUnavailable, "the transport has been closed"});
        }
      } else if (auto* connect = std::get_if<Connect>(&command)) {
        if (!stopped_) connections_.connect(connect->id, connect->address);
      } else if (auto* disconnect = std::get_if<Disconnect>(&command)) {
        connections_.disconnect(disconnect->peer);
      } else if (std::holds_alternative<Stop>(command)) {
        stopped_ = true;
      }
    }
    const bool any = !taken_.empty();
    taken_.clear();
    return any;
  }

  void run() {
    Clock::time_point last_busy;
    while (!stopped_) {
      bool busy = run_commands();
      const Clock::time_point now = Clock::now();
      connections_.check_deadlines(now);
      busy |= connections_.progress(now);  // last: what the others left to be called is called
      if (busy) {
        last_busy = now;
        continue;
      }
      if (config_.busy_poll || (connections_.receiving() && now - last_busy < kMaxSpin)) {
        // With fewer cores than threads the one that spins would keep the others from working.
        std::this_thread::yield();
      } else {
        sleep(now);
      }
    }
    connections_.shut_down();
    // A `sent` that shut_down() called may have sent again.
    while (run_commands()) connections_.shut_down();
  }

  void sleep(Clock::time_point now) {
    {
      const std::lock_guard lock(mutex_);
      if (!commands_.empty()) return;
      sleeping_ = true;
    }
    if (connections_.arm()) {
      const auto longest = connections_.greeting() ? kGreetingPause : kMaxSleep;
      const auto until = std::min(connections_.next_deadline(), now + longest);
      const auto timeout = std::chrono::ceil<std::chrono::milliseconds>(until - now);
      std::array<pollfd, 3> fds{
          pollfd{.fd = connections_.door_fd(), .events = POLLIN, .revents = 0},
          pollfd{.fd = connections_.event_fd(), .events = POLLIN, .revents = 0},
          pollfd{.fd = wake_up_.fd(), .events = POLLIN, .revents = 0}};
      const auto limit = std::max<std::int64_t>(timeout.count(), 0);
      static_cast<void>(poll(fds.data(), fds.size(), static_cast<int>(limit)));
      if (fds.front().revents != 0) connections_.look_at_door();
    }
    const std::lock_guard lock(mutex_);
    if (!std::exchange(sleeping_, false)) wake_up_.clear();
  }

  const TransportConfig config_;
  WakeUp wake_up_;
  std::mutex mutex_;
  std::vector<Command> commands_;  // bounded by the limits of the peers that they are taken to
  bool sleeping_ = false;
  // Of the progress thread.
  ucx::Connections connections_;
  std::vector<Command> taken_;
  bool stopped_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_ucx_transport(const TransportConfig& config,
                                              TransportHandler& handler) {
  return std::make_unique<UcxTransport>(config, handler);
}

}  // namespace tributary
