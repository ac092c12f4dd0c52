// The connections of a UCX transport: peers, what is in flight, and their deadlines. Made, used and
// destroyed by one thread, the progress thread.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/transport/places.h"
#include "comm/transport/transport.h"
#include "comm/ucx/bounce_buffers.h"
#include "comm/ucx/front_door.h"
#include "comm/ucx/ucx_address.h"
#include "comm/ucx/ucx_routes.h"
#include "comm/ucx/ucx_support.h"

namespace tributary::ucx {

// Ids of the active messages.
inline constexpr unsigned kMessage = 0;
inline constexpr unsigned kHello = 1;    // the first message of a connecting side
inline constexpr unsigned kWelcome = 2;  // the answer

/// Precedes every message's header: the label and the type.
inline constexpr std::size_t kMessagePrefixBytes =
    sizeof(std::uint64_t) + sizeof(OutgoingMessage::type);

/// UCX calls back only from inside progress(). Of the user's functions only on_message runs there;
/// the others (`done`, `sent`, on_disconnect) are called after UCX has returned.
///
/// A connection begins and ends at the front door. Its messages are sent over UCX and begin with
/// the label that their receiver has chosen. After both introductions the connecting side sends a
/// hello over UCX, and the accepting side answers with a welcome. Until the welcome arrives the
/// connecting side holds its messages back, because UCX does not keep the order of messages while
/// it sets up its own connection; the accepting side, which has no route before the hello, until it
/// has sent the welcome. connect_timeout covers all of this.
///
/// The states of a peer: open; after disconnect() flushing, for a bounded time; closing, while
/// something is in flight, until UCX has released it; gone.
class Connections {
 public:
  using Clock = std::chrono::steady_clock;

  /// Binds. Accepted peers get their ids from `next_id`, as connected ones do. All three arguments
  /// outlive this. Throws as make_ucx_transport does.
  Connections(const TransportConfig& config, TransportHandler& handler,
              std::atomic<PeerId>& next_id);
  ~Connections() = default;
  Connections(const Connections&) = delete;
  Connections& operator=(const Connections&) = delete;

  [[nodiscard]] const std::string& address() const noexcept { return door_.address(); }

  void connect(PeerId id, const SocketAddress& address, const tributary::Introduction& who);
  void send(PeerId id, OutgoingMessage message);
  void disconnect(PeerId id);

  /// Returns whether anything happened.
  bool progress(Clock::time_point now);
  void check_deadlines(Clock::time_point now);
  /// The latest time for the next check_deadlines().
  [[nodiscard]] Clock::time_point next_deadline() const;
  [[nodiscard]] bool arm() { return worker_.arm(); }
  [[nodiscard]] int event_fd() const noexcept { return worker_.event_fd(); }
  [[nodiscard]] int door_fd() const noexcept { return door_.event_fd(); }
  /// Whether a hello is still to be sent.
  [[nodiscard]] bool greeting() const noexcept { return !greeting_.empty(); }
  /// Whether a requested payload has not arrived yet.
  [[nodiscard]] bool receiving() const noexcept { return !receives_.empty(); }
  /// Call this when door_fd() is readable: the next progress() handles it.
  void look_at_door() noexcept { look_at_door_ = true; }
  /// Closes everything within a deadline and calls all outstanding functions, but not the handler.
  void shut_down();
  /// Schedules a call of `function` (a `sent`) on this thread.
  void call_later(const std::function<void(const Status&)>& function, const Status& status);

 private:
  enum class State : std::uint8_t { kOpen, kFlushing, kClosing };
  struct Peer {
    PeerId id = 0;
    std::uint64_t label = 0;  // its messages to us begin with this
    Contact contact;          // the other side's
    Route* route = nullptr;   // set by its introduction or its hello
    std::string name;
    State state = State::kOpen;
    bool accepted = false;
    bool announced = false;  // the handler knows it and must be told of its end
    bool spoken = false;     // it has sent a message
    bool unread = false;     // its payloads wait: it has too much to read
    bool welcomed = false;   // both sides are ready: messages may be sent
    bool flushed = false;    // according to UCX; its messages may still be fetched
    Status reason;
    std::size_t outgoing_bytes = 0;
    std::size_t sends = 0;              // in flight
    std::size_t receives = 0;           // in flight
    std::vector<OutgoingMessage> held;  // messages held back until `welcomed`
  };
  struct Send {
    PeerId peer = 0;
    std::size_t cost = 0;
    std::vector<std::byte> header;
    std::vector<ucp_dt_iov_t> pieces;
    std::function<void(const Status&)> sent;
    Clock::time_point deadline;
  };
  struct Receive {
    PeerId peer = 0;
    Landing landing;
    BounceBuffers::Buffer buffer;
    Clock::time_point deadline;
  };
  /// A payload that waits at its sender.
  struct Announced {
    PeerId peer = 0;
    Landing landing;
    void* descriptor = nullptr;  // UCX's
    std::size_t bytes = 0;
  };
  struct Call {  // a call of `function`, or of on_disconnect for `peer`
    std::function<void(const Status&)> function;
    Status status;
    PeerId peer = 0;
  };
  struct Gone {
    Clock::time_point since;
    PeerId peer = 0;
  };
  using Timer = std::pair<Clock::time_point, PeerId>;

  // ucx_connections.cc
  Peer& add_peer(PeerId id, std::string name, bool accepted);
  [[nodiscard]] Peer* find(PeerId id);
  [[nodiscard]] Peer* open_peer(std::uint64_t label);
  void end(Peer& peer, const Status& reason);
  void give_up(Route& route, const Status& reason);
  void finish(Peer& peer);
  bool answer_door(Clock::time_point now);
  void on_introduction(FrontDoor::Event event);
  [[nodiscard]] bool open_route(Peer& peer);
  bool welcome();
  void on_flushed(PeerId id);
  bool end_gone(Clock::time_point now, bool busy);
  bool end_failed();
  bool run_calls();

  // ucx_messages.cc
  void set_handlers();
  void on_welcome(Peer& peer);
  void send_held(Peer& peer);
  bool say_hellos();
  [[nodiscard]] ucs_status_t say_hello(Peer& peer);
  void send_now(Peer& peer, OutgoingMessage message, unsigned number);
  [[nodiscard]] ucs_status_t on_message(std::span<const std::byte> header, void* data,
                                        std::size_t bytes, const ucp_am_recv_param_t& param);
  bool receive_announced();
  void receive(Peer& peer, Landing landing, void* descriptor, BounceBuffers::Buffer buffer,
               std::size_t bytes);
  void finish_send(std::uint64_t number, const Status& status);
  void finish_receive(std::uint64_t number, const Status& status);
  void finish_messages_of(const Peer& peer);
  void finish_receives_of(const Peer& peer);

  const TransportConfig& config_;
  TransportHandler& handler_;
  BounceBuffers buffers_;  // outlives the worker, which writes into the buffers
  Worker worker_;
  Routes routes_;
  FrontDoor door_;
  bool look_at_door_ = true;
  Clock::time_point next_look_;

  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
  std::unordered_map<std::uint64_t, Peer*> by_label_;  // peers that are not closing
  Places accepted_;
  std::vector<std::pair<PeerId, Status>> failed_;  // peers to end
  std::vector<PeerId> greeting_;                   // peers whose hello must be sent
  std::vector<PeerId> hellos_;                     // hellos to answer
  std::deque<Timer> connecting_;                   // oldest first
  std::deque<Timer> flushing_;                     // oldest first
  std::vector<Gone> gone_;                         // from the front door; oldest first
  Clock::time_point next_idle_check_;

  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, Send> sends_;        // in flight, oldest first
  std::map<std::uint64_t, Receive> receives_;  // oldest first
  std::deque<Announced> announced_;            // oldest first
  bool room_ = false;                          // there may be room for one of announced_
  std::vector<Call> calls_;
};

}  // namespace tributary::ucx
