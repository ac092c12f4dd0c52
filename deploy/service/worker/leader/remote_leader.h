// The port of every other rank: the leader is in another process.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/transport/message_condition.h"
#include "comm/wire/access_token.h"
#include "core/base/deadline.h"
#include "core/interface/clock.h"
#include "deploy/service/worker/home/home_queue.h"
#include "deploy/service/worker/home/leader_port.h"
#include "deploy/service/worker/home/peers.h"
#include "deploy/service/worker/home/relays.h"

namespace tributary {

class RemoteLeader final : public LeaderPort {
 public:
  /// `queue` and `relays` belong to the home on this rank. All outlive the port.
  RemoteLeader(int rank, const wire::Token& pool_key, Peers& peers, HomeQueue& queue,
               Relays& relays, Clock& clock);

  /// Joins the leader at `address`, as `own`. Call it once, before the leader is waited for.
  /// Earlier posts are lost.
  void connect(const std::string& address, const wire::Join& own);
  /// Returns kFailedPrecondition: rank 0 sends.
  Status send(std::span<const std::byte> order, Deadline deadline) override;
  Status wait(std::vector<std::byte>& order, Deadline deadline,
              const std::function<Status()>& look) override;
  void wake() override;

  void post(ToLeader message) override {
    std::visit([this](const auto& word) { peers_.send(leader_, word); }, message);
  }
  void work_with(Transport* transport) override { changed_.use(transport); }
  void join(PeerId peer, const wire::Join& join, Time now) override;
  [[nodiscard]] std::optional<Landing> receive(const Peers::Peer& from, wire::MessageType type,
                                               std::span<const std::byte> header,
                                               std::size_t payload_bytes) override;
  void lost(const Peers::Peer& peer, const Status& reason) override;

 private:
  /// The bound on an order, and on orders that came before one with a lower number. The leader
  /// waits for the end of each, so there is seldom a second one.
  static constexpr std::size_t kMaxOrderBytes = std::size_t{256} << 20;
  static constexpr std::uint64_t kMaxAhead = 8;

  [[nodiscard]] Landing receive(const wire::PoolOrder& order, std::size_t payload_bytes);
  void left(const wire::Outcome& outcome);

  int rank_;
  wire::Token token_;  // of the pool itself
  Peers& peers_;
  HomeQueue& queue_;
  Relays& relays_;
  Clock& clock_;
  std::atomic<PeerId> leader_ = 0;

  std::mutex mutex_;  // guards what follows
  MessageCondition changed_;
  std::map<std::uint64_t, std::vector<std::byte>> orders_;  // that have arrived, by number
  std::uint64_t next_order_ = 1;
  bool woken_ = false;  // since the last look
  bool left_ = false;   // the pool goes on without this worker, as it has asked
  Status lost_;
};

}  // namespace tributary
