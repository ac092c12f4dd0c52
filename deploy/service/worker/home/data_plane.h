// Every worker's side of the data plane: passes a connection's message to the part that handles it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>

#include "comm/transport/transport.h"
#include "core/base/deadline.h"
#include "core/interface/clock.h"
#include "deploy/service/protocol/client_messages.h"
#include "deploy/service/worker/home/access_check.h"
#include "deploy/service/worker/home/home.h"
#include "deploy/service/worker/home/leader_port.h"
#include "deploy/service/worker/home/peers.h"
#include "deploy/service/worker/home/rows_receiver.h"
#include "deploy/service/worker/home/rows_sender.h"

namespace tributary {

struct DataPlaneConfig {
  int rank = 0;
  PoolShape shape;  // the pool's
  TransportConfig transport;
  /// A connection that has not introduced itself within this time, or was refused, is closed.
  std::chrono::milliseconds hello_timeout{5'000};
  /// Clients are let in from the start; else from serve() on.
  bool serves = true;
  std::function<void(const std::string&)> log = {};  // for the operator; any thread
};

/// The parts that the data plane hands messages to. All outlive it; its transport's thread is
/// theirs.
struct DataPlaneParts {
  Peers& peers;
  AccessCheck& access;
  RowsReceiver& rows;
  RowsSender& pulls;
  Home& home;
  const HomeQueue& queue;
  const Relays& relays;
  LeaderPort& leader;
};

class DataPlane final : public TransportHandler {
 public:
  /// Listens at once.
  DataPlane(DataPlaneConfig config, const DataPlaneParts& parts,
            const MakeTransport& make_transport, Clock& clock);
  /// Closes all connections.
  ~DataPlane() override;

  [[nodiscard]] const std::string& address() const noexcept { return transport_->address(); }

  /// This worker knows the pool's sequences: it may tell clients which do not exist.
  void serve() noexcept { serves_ = true; }
  /// Call it twice a second, from any thread. It tells the leader that this worker is alive, and
  /// closes connections that have not introduced themselves, that hold pages of an ended sequence,
  /// or whose sequences have all ended.
  void tick(Time now);

  void on_open(PeerId peer, const Proven& who) override;
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;
  void on_accepting_paused(const Status& reason) override;
  void on_limit(TransportLimit limit, const Status& what) override;

 private:
  [[nodiscard]] std::optional<Landing> from_client(PeerId peer, wire::MessageType type,
                                                   std::span<const std::byte> header,
                                                   std::size_t payload_bytes, Time now);
  void from_stranger(PeerId peer, wire::MessageType type, std::span<const std::byte> header,
                     Time now);
  void hello(PeerId peer, const wire::Hello& hello, Time now);
  /// Ends a connection on this side.
  void close(PeerId peer, const Status& reason);
  void ended(const Peers::Peer& peer, const Status& reason);
  /// Counts a limit that has taken effect, and logs it once a second.
  void limited(wire::Limit limit, const std::string& what, Time now, std::uint64_t times = 1);
  void close_idle(Time now);

  DataPlaneConfig config_;
  DataPlaneParts parts_;
  Clock& clock_;
  std::atomic<bool> serves_;
  std::atomic<std::uint64_t> accept_pauses_ = 0;
  Time pause_logged_;  // the transport's thread
  struct Limited {
    std::uint64_t times = 0;
    std::uint64_t logged = 0;
    Time at;
  };
  std::mutex mutex_;  // guards limits_
  std::array<Limited, wire::kLimits> limits_;
  std::uint64_t requests_refused_ = 0;  // as of the last tick
  std::uint64_t controls_refused_ = 0;
  std::uint64_t pulls_refused_ = 0;
  std::unique_ptr<Transport> transport_;  // goes first: it calls the rest
};

/// Returns kInvalidArgument naming the first field in which a client's shape differs from the
/// pool's.
[[nodiscard]] Status compare_shapes(const PoolShape& client, const PoolShape& pool);

}  // namespace tributary
