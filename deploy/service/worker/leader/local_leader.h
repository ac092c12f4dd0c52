// The port of rank 0: the leader's inbox is in its process, and the other workers of the pool
// connect.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "deploy/service/worker/home/home_queue.h"
#include "deploy/service/worker/home/leader_port.h"
#include "deploy/service/worker/home/peers.h"
#include "deploy/service/worker/home/relays.h"
#include "deploy/service/worker/leader/accusations.h"
#include "deploy/service/worker/leader/leader_inbox.h"

namespace tributary {

class LocalLeader final : public LeaderPort {
 public:
  /// `queue` and `relays` belong to the home beside the leader. All outlive the port.
  LocalLeader(int workers, Peers& peers, HomeQueue& queue, Relays& relays, LeaderInbox& inbox,
              Clock& clock);

  void post(ToLeader message) override {
    std::visit([this](auto& word) { take(0, std::move(word)); }, message);
  }
  void work_with(Transport* transport) override {
    transport_ = transport;
    inbox_.work_with(transport);
  }
  void join(PeerId peer, const wire::Join& join, Time now) override;
  [[nodiscard]] std::optional<Landing> receive(const Peers::Peer& from, wire::MessageType type,
                                               std::span<const std::byte> header,
                                               std::size_t payload_bytes) override;
  void lost(const Peers::Peer& peer, const Status& reason) override;

  /// Call it after LeaderInbox::wait_joined. Returns when the order has left, which takes some 10
  /// us; a worker that does not get it is found lost.
  Status send(std::span<const std::byte> order, Deadline deadline) override;
  /// Returns kFailedPrecondition: rank 0 sends.
  Status wait(std::vector<std::byte>& order, Deadline deadline,
              const std::function<Status()>& look) override;
  void wake() override { inbox_.wake(); }

  // The leader's messages (LeaderLinks), from its thread.

  void refuse(int rank, const wire::ItemsRefused& refused);
  void answer(int rank, const wire::ControlRelayReply& verdicts);
  /// The pool goes on without this worker, which hears why (ok: as it has asked): its connection
  /// ends, and it gets no more messages.
  void leave_out(int rank, const Status& reason);
  /// Another worker that was lost before may join, in the place of this one. From any thread.
  void expect(int rank);
  /// It has, and gets orders from the next one on.
  void take_in(int rank);
  /// The pool's generation, after an order.
  void regrouped(std::uint64_t generation);
  /// Who is to go, by the words of those that waited for somebody in vain in this generation.
  [[nodiscard]] std::optional<int> accused();

 private:
  void take(int rank, wire::Items items);
  void take(int rank, wire::ControlRelay relay);
  void take(int rank, const wire::Progress& progress);
  void take(int rank, const wire::Beat& beat);
  void take(int rank, const wire::OrderWanted& wanted);
  void take(int rank, const wire::Leaving& leaving);
  void take(int rank, const wire::WaitedFor& waited);

  struct Slot {
    std::atomic<PeerId> peer = 0;  // 0: not here yet, or left out
    std::atomic<bool> left_out = false;
    std::atomic<bool> gets_orders = true;
    std::uint64_t last_order = 0;  // of this peer; the leader's thread
  };
  [[nodiscard]] Slot& slot(int rank) { return slots_[static_cast<std::size_t>(rank)]; }

  Peers& peers_;
  HomeQueue& queue_;
  Relays& relays_;
  LeaderInbox& inbox_;
  Clock& clock_;
  std::atomic<Transport*> transport_ = nullptr;
  std::vector<Slot> slots_;  // by rank
  std::mutex mutex_;
  Accusations accusations_;  // mutex_
};

}  // namespace tributary
