// The connections of one process with the others of its mesh. Internal to comm/mesh.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mesh/mesh_communicator.h"
#include "comm/mesh/mesh_group.h"
#include "comm/mesh/mesh_messages.h"
#include "comm/transport/transport.h"
#include "core/base/deadline.h"
#include "core/interface/clock.h"

namespace tributary::mesh {

/// Another rank, as the process that it was when a communicator began with it.
struct MeshPeer {
  int rank = 0;
  std::uint64_t life = 0;  // see Mesh::Link; 0: it is still to come
};

/// A process that has come in the place of a lost one.
struct Newcomer {
  MeshPeer process;
  std::uint64_t visit = 0;  // 1, 2, ...
};

/// Every rank but 0 connects to rank 0 and says where it listens. Rank 0 tells the higher rank of
/// each two that have come where the lower one is, and that one connects. On each connection both
/// sides prove the mesh's secret first, so that a rank is who it says.
class Mesh final : public TransportHandler {
 public:
  /// As join_mesh().
  Mesh(MeshConfig config, const MakeTransport& make_transport, Clock& clock);
  ~Mesh() override;

  /// Returns when there is a connection with every other rank, or in the place of a lost one with
  /// those that are there; kUnavailable where rank 0 is not there (any more), otherwise what cannot
  /// be healed by another try. `visit`: of a Newcomer, and 0 at the start of all.
  [[nodiscard]] Status meet(Deadline deadline, std::uint64_t& visit);

  [[nodiscard]] int rank() const noexcept { return config_.rank; }
  [[nodiscard]] int ranks() const noexcept { return config_.ranks; }
  [[nodiscard]] Clock& clock() const noexcept { return clock_; }
  /// The transport's.
  [[nodiscard]] std::string_view name() const noexcept { return transport_->name(); }
  [[nodiscard]] const std::string& address() const noexcept { return transport_->address(); }

  // For rank 0's door.

  /// The process of `rank` is given up, if it is still that of `visit` where that is given: another
  /// one may come.
  void open_slot(int rank, std::optional<std::uint64_t> visit = {});
  /// The next process that has come; no value after close_door().
  [[nodiscard]] std::optional<Newcomer> wait_newcomer();
  void close_door();

  // For communicators.

  /// What a communicator has of its mesh.
  struct Membership {
    std::shared_ptr<MeshGroup> group;  // what arrives for it, from before this call as well
    std::vector<MeshPeer> others;      // members
  };
  /// Of `members`, on the communicator `id`. Those that are not among `before`, the others of the
  /// communicator before, are still to come: as other processes than those that were left out,
  /// which may live. No value: all are there.
  [[nodiscard]] Membership open(std::uint64_t id, std::span<const int> members,
                                std::optional<std::span<const MeshPeer>> before = {});
  /// Waits until those of `peers` that are still to come have come, or one is lost; `late` as in
  /// wait().
  [[nodiscard]] Status await(std::span<MeshPeer> peers, std::string_view call, Deadline deadline,
                             std::vector<int>& late);
  /// What still arrives for it, from `others`, is dropped.
  void close(std::uint64_t id, std::span<const MeshPeer> others);
  /// How many communicators it knows: closed ones too, until nobody can send for them.
  [[nodiscard]] std::size_t communicators() const;
  /// Sends `bytes`, which `owner` keeps, as the rank's block.
  void send(int to, const MeshBlock& block, std::span<const std::byte> bytes,
            const std::shared_ptr<MeshGroup>& group, std::shared_ptr<const void> owner);
  void send(int to, const Failure& failure);
  /// Waits until the blocks of call `number` from all of `peers` have arrived. After a failure that
  /// nobody has told it, `late` are those whose have not.
  [[nodiscard]] Status wait(MeshGroup& group, std::uint64_t number, std::span<const MeshPeer> peers,
                            std::string_view call, Deadline deadline, std::vector<int>& late);
  void release(MeshGroup& group, std::uint64_t number);
  /// The communicator has failed here. Returns the call in which the others fail too; no value if
  /// another rank, which tells all, has said so before.
  [[nodiscard]] std::optional<std::uint64_t> end(MeshGroup& group, const Status& cause);
  /// Ends wait().
  void interrupt(MeshGroup& group, const Status& cause);
  /// The cause of the group's end, or the loss of one of `peers`, which is in `late` then; ok
  /// without either.
  [[nodiscard]] Status failure(const MeshGroup& group, std::span<const MeshPeer> peers,
                               std::vector<int>& late);

 private:
  void on_open(PeerId peer, const Proven& who) override;
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;
  void on_listener_failed(const Status& reason) override;

  /// This process' connection with a rank, or the last one.
  struct Link {
    PeerId peer = 0;             // 0: none so far
    bool up = false;             // proven by both sides; at rank 0: and joined
    Status lost;                 // why it has ended
    std::string address;         // at which the rank listens, where it is known
    std::uint64_t life = 0;      // connections so far: the process is another one with each
    std::uint64_t left_out = 0;  // the life that the others go on without
  };
  /// What rank 0 knows of a rank, once all have met.
  struct Slot {
    enum class State : std::uint8_t { kMember, kOpen, kArriving } state = State::kMember;
    std::uint64_t visit = 0;  // of the process that arrives, or has
  };

  /// A communicator that somebody has, sends for, or has closed.
  struct Known {
    std::shared_ptr<MeshGroup> group;  // null: closed
    std::vector<int> senders;          // of a closed one: ranks whose messages may still come
  };

  [[nodiscard]] Link& link(int rank) { return links_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Link& link(int rank) const { return links_[static_cast<std::size_t>(rank)]; }
  void connect(int to, const std::string& address);
  void use(int with, PeerId peer);
  void join(PeerId peer, int from, const MeshJoin& join);
  [[nodiscard]] Status judge(int from, const MeshJoin& join) const;
  void accept(int newcomer);
  void introduce(int newcomer);
  [[nodiscard]] Slot& slot(int rank) { return slots_[static_cast<std::size_t>(rank)]; }
  void await_members(const std::vector<std::int32_t>& members);
  std::optional<Landing> receive(int from, const MeshBlock& block, std::size_t bytes);
  void receive(PeerId peer, int from, MessageType type, std::span<const std::byte> header);
  void lose(PeerId peer, const Status& reason);
  [[nodiscard]] Status gone(const MeshPeer& peer) const;
  void notify();
  void left();
  /// Of a message from `from`.
  [[nodiscard]] std::shared_ptr<MeshGroup> group(std::uint64_t id, int from);
  /// The other ranks without a connection.
  [[nodiscard]] std::vector<int> missing() const;
  void send(PeerId peer, const auto& message);

  const MeshConfig config_;
  Clock& clock_;
  mutable std::mutex mutex_;  // guards what follows
  Condition changed_;
  std::atomic<std::uint64_t> events_ = 0;  // notifications; also read by one who looks
  std::vector<Link> links_;                // [rank]; its own stays empty
  std::map<PeerId, int> ranks_of_;         // proven peers, and those that we connect to
  std::map<std::uint64_t, Known> groups_;
  std::size_t leaving_ = 0;             // blocks that are being sent
  std::map<std::uint64_t, int> early_;  // groups that nobody here has opened: who sent for them
  Status refused_;                      // why this rank cannot come in
  std::vector<int> awaited_;            // whom meet() waits for
  std::uint64_t visit_ = 0;             // this rank's; at rank 0 the last one of any
  std::vector<Slot> slots_;             // at rank 0; [rank]
  std::deque<Newcomer> newcomers_;      // that nobody has taken
  bool closed_ = false;                 // the door
  bool met_ = false;
  bool ending_ = false;
  std::unique_ptr<Transport> transport_;  // goes first: it calls the rest
};

}  // namespace tributary::mesh
