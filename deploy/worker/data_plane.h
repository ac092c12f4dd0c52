// Every worker's side of the data plane: who is connected, what each may say, and where it goes.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/transport/transport.h"
#include "comm/wire/messages.h"
#include "core/base/deadline.h"
#include "deploy/worker/access_check.h"
#include "deploy/worker/home_queue.h"
#include "deploy/worker/leader_inbox.h"
#include "deploy/worker/pool_model.h"
#include "deploy/worker/rows_receiver.h"

namespace tributary {

using MakeTransport =
    std::function<std::unique_ptr<Transport>(const TransportConfig&, TransportHandler&)>;

struct DataPlaneConfig {
  int rank = 0;
  int workers = 1;
  wire::Token pool_key{};
  TransportConfig transport;
  /// A connection that has not introduced itself by then, or was refused, is closed.
  std::chrono::milliseconds hello_timeout{5'000};
  std::size_t max_staged_bytes = std::size_t{256} << 20;
};

class DataPlane final : public TransportHandler {
 public:
  /// `inbox` is the leader's, null on other ranks. All outlive the data plane, which listens from
  /// here on.
  DataPlane(const DataPlaneConfig& config, const PoolModel& model, IngestTable& table,
            Backend& backend, Cache& cache, HomeQueue& queue, LeaderInbox* inbox,
            const MakeTransport& make_transport);
  /// Closes all connections.
  ~DataPlane() override;

  [[nodiscard]] const std::string& address() const noexcept { return transport_->address(); }

  // From the worker's thread.

  /// Other ranks: connects to the leader.
  void join(const std::string& leader_address);
  /// Other ranks: waits for the leader's word that an order follows. kDeadlineExceeded;
  /// kWorkerFailed when the leader is gone.
  [[nodiscard]] Status wait_wake(Deadline deadline);
  /// The answer to a round (HomeQueue::Reply).
  void reply(const std::shared_ptr<HomeRound>& round);

  // The leader's words (LeaderLinks).

  void wake();
  void refuse(int rank, const wire::ItemsRefused& refused);
  void answer(int rank, const wire::ForwardReply& reply);

  /// Twice a second, from any thread: tells the leader that this worker is alive, and closes
  /// connections that have not introduced themselves, or that hold pages of an ended sequence.
  void tick();

  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;

 private:
  enum class State { kNew, kClient, kWorker, kLeader, kRefused };
  struct Peer {
    State state = State::kNew;
    int rank = 0;  // of a worker
    Deadline::Clock::time_point since{};
  };
  struct Control {
    PeerId peer = 0;
    std::uint64_t request = 0;
  };

  [[nodiscard]] Peer peer_of(PeerId peer);
  void set_peer(PeerId peer, Peer state);
  [[nodiscard]] std::optional<Landing> from_client(PeerId peer, wire::MessageType type,
                                                   std::span<const std::byte> header,
                                                   std::size_t payload_bytes);
  void from_worker(int rank, wire::MessageType type, std::span<const std::byte> header);
  void from_leader(wire::MessageType type, std::span<const std::byte> header);
  void hello(PeerId peer, const wire::Hello& hello);
  void join(PeerId peer, const wire::Join& join);

  [[nodiscard]] std::optional<Landing> receive_round(PeerId peer, const wire::Round& round,
                                                     std::size_t payload_bytes);
  [[nodiscard]] Status check_round(const wire::Round& round, std::size_t payload_bytes);
  void round_landed(const std::shared_ptr<HomeRound>& round, const Status& status);
  void refuse_round(PeerId peer, const wire::Round& round, const Status& status);
  void receive_control(PeerId peer, const wire::Control& control);
  void answer_control(const wire::ForwardReply& reply);

  void send(PeerId peer, wire::MessageType type, std::vector<std::byte> header);
  /// To the leader's inbox, or to the leader's data plane; false where the inbox is full.
  [[nodiscard]] bool post_items(wire::Items items);
  [[nodiscard]] bool post_forward(wire::Forward forward);
  void post_progress(const wire::Progress& progress);
  void post_beat(const wire::Beat& beat);

  DataPlaneConfig config_;
  const PoolModel& model_;
  HomeQueue& queue_;
  LeaderInbox* inbox_;
  RowsReceiver rows_;
  AccessCheck access_;

  std::mutex mutex_;  // guards what follows, up to the transport
  std::condition_variable changed_;
  std::unordered_map<PeerId, Peer> peers_;
  std::vector<PeerId> workers_;  // on the leader, by rank
  std::uint64_t wakes_ = 0;
  Status leader_lost_;
  std::unordered_map<std::uint64_t, Control> controls_;  // by ticket
  std::uint64_t last_control_ = 0;

  std::atomic<PeerId> leader_ = 0;  // 0 on the leader
  std::atomic<bool> stopping_ = false;
  std::unique_ptr<Transport> transport_;
};

/// kInvalidArgument naming the first field in which a client's shape is not the pool's.
[[nodiscard]] Status compare_shapes(const wire::Shape& client, const wire::Shape& pool);

}  // namespace tributary
