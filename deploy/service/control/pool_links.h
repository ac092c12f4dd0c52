// The connections of pools: registers them, takes their messages, asks them, and notices when they
// are gone. It decides; the sockets are objects behind WebSocket, the time is passed in.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/http/websocket.h"
#include "core/base/stall_clock.h"
#include "core/interface/clock.h"
#include "deploy/service/control/control_log.h"
#include "deploy/service/control/pool_calls.h"
#include "deploy/service/control/pool_registry.h"
#include "deploy/service/control/refused_pools.h"
#include "deploy/service/protocol/pool_messages.h"

namespace tributary {

class PoolLinks {
 public:
  struct Config {
    /// Three beats: a pool that is silent for longer gets no requests.
    std::chrono::milliseconds pool_timeout{1'500};
    /// It has this long in all to come back before its sequences are lost: a network may be cut for
    /// seconds.
    std::chrono::milliseconds pool_patience{15'000};
    /// The time from the connection, or from its last message, to the next of its registration.
    std::chrono::milliseconds registration_timeout{5'000};
  };
  /// Called for a pool that has just registered, with the sequences that it brought.
  using OnRegistered =
      std::function<void(const std::string& pool, const std::vector<SequenceInfo>&)>;

  /// The clock and the registry outlive this object.
  PoolLinks(const Clock& clock, PoolRegistry& registry, const Config& config,
            OnRegistered on_registered, ControlLog log = write_log);

  /// Call watch() at this period: a lost pool is noticed at most this much later than its timeout.
  static constexpr std::chrono::milliseconds kWatchPeriod{250};
  /// Judges silence and deadlines. Not to be called inside a callback of a socket.
  void watch();
  void accept(std::shared_ptr<WebSocket> socket);
  /// Asks a pool; fills in `message`'s request number. `done` is called once; for a pool that has
  /// no connection perhaps at once, with kPoolLost.
  void call(const std::string& pool, ToPool message, Time deadline, PoolCalls::Done done);

  [[nodiscard]] std::size_t calls() const noexcept { return calls_.size(); }
  /// Registrations by outcome.
  [[nodiscard]] std::uint64_t registered() const noexcept { return registered_; }
  [[nodiscard]] std::uint64_t refused() const noexcept { return refused_; }

 private:
  struct Link {
    std::shared_ptr<WebSocket> socket;
    std::string pool;                           // empty until it is registered
    Time heard;                                 // its last message, until it is registered
    std::optional<RegisterPool> arriving = {};  // whose sequences have not all come
    std::size_t registration_bytes = 0;
  };

  template <typename... Args>
  void warn(fmt::format_string<Args...> format, Args&&... args) {
    log_(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
  }
  void receive(std::uint64_t number, std::string_view text);
  void check_bytes(Link& link, std::size_t bytes) const;
  void handle(std::uint64_t number, RegisterPool message);
  void handle(std::uint64_t number, MoreSequences message);
  void handle(std::uint64_t number, Heartbeat message);
  void handle(std::uint64_t number, const PoolReply& message);
  void handle(std::uint64_t number, const SequenceEnded& message);
  void handle(std::uint64_t number, WorkerJoined message);
  void handle(std::uint64_t number, const Goodbye& message);
  void register_pool(std::uint64_t number, RegisterPool pool);
  void refuse(std::uint64_t number, const Error& error);
  /// Ends the connection and, if it belongs to a pool, the pool; or lets it be silent, where
  /// nothing has come for too long (kDeadlineExceeded), or we were held up until now.
  void end(std::uint64_t number, const Status& because);
  void lose(const std::string& pool, const std::string& because);
  /// Keeps the connection: its end tells that the pool has ended, and a word on it that it lives.
  void silence(const std::string& pool, const std::string& because);
  /// The connection is that of a silent pool.
  [[nodiscard]] bool is_silent(std::uint64_t number, const std::string& pool) const;
  /// Whoever runs first after the control plane was held up, a timer or a socket, notices that.
  void notice_stall(Time now);
  /// Closes the connection. Its socket is destroyed by the next watch(), since this may run inside
  /// one of its callbacks.
  void drop(std::uint64_t number);
  [[nodiscard]] const std::string& pool_of(std::uint64_t number) const;
  [[nodiscard]] Link* link_of(const std::string& pool);

  const Clock& clock_;
  PoolRegistry& registry_;
  Config config_;
  OnRegistered on_registered_;
  ControlLog log_;
  PoolCalls calls_;
  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, Link> links_;
  std::vector<std::shared_ptr<WebSocket>> dropped_;
  std::map<std::string, std::uint64_t> number_of_pool_;
  std::uint64_t registered_ = 0;
  std::uint64_t refused_ = 0;
  RefusedPools refused_pools_;
  StallClock stalls_;
  Time resumed_ = Time::min();  // after it was held up
};

}  // namespace tributary
