// Each transport is a thread with an inbox. A connection is an entry on each side that names the
// other one. All work of a connection is done on the threads of its two sides.
#include "comm/local/local_transport.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>

#include "comm/local/local_transfer.h"
#include "comm/transport/message_limits.h"
#include "comm/transport/places.h"
#include "comm/transport/proof.h"
#include "core/interface/clock.h"
#include "core/interface/condition.h"
#include "core/interface/thread.h"

namespace tributary {
namespace {

Status unavailable(std::string message) {
  return {ErrorCode::kUnavailable, std::move(message)};
}

constexpr std::uint16_t kFirstFreePort = 1024;

std::uint16_t parse_port(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  std::uint16_t port = 0;
  if (colon != std::string::npos && colon > 0) {
    const char* end = address.data() + address.size();
    const auto [stop, error] = std::from_chars(address.data() + colon + 1, end, port);
    if (error == std::errc() && stop == end) return port;
  }
  fail(ErrorCode::kInvalidArgument, "address '{}': expected NAME:PORT, port 0 to 65535", address);
}

void call(const std::function<void(const Status&)>& function, const Status& status) {
  if (function) function(status);
}
struct Node;

// Events from the transport's own callers.
struct Connect {
  PeerId peer;
  std::string address;
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
// Events from other transports; `peer` is the receiver's id.
struct Opened {
  PeerId peer;
  std::shared_ptr<Node> other;
  PeerId others_peer;
  Introduction introduction;
};
struct Accepted {
  PeerId peer;
  Proven who;
};
struct Arrived {
  PeerId peer;
  std::shared_ptr<Transfer> transfer;
};
struct Finished {
  std::uint64_t number;
};
struct Closed {
  PeerId peer;
  Status reason;
};
using Event =
    std::variant<Connect, Send, Disconnect, Stop, Opened, Accepted, Arrived, Finished, Closed>;

/// The part of a transport that other transports see. It may outlive the transport and is closed
/// then.
struct Node {
  std::mutex mutex;
  Condition arrived;
  std::deque<Event> inbox;
  bool closed = false;
  std::atomic<PeerId> next_peer{1};

  bool post(Event event) {
    const std::lock_guard lock(mutex);
    if (closed) return false;
    inbox.push_back(std::move(event));
    arrived.notify_all();
    return true;
  }
};

}  // namespace

struct LocalRegistry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Node>> listening;

  std::string add(const std::string& address, const std::shared_ptr<Node>& node) {
    std::uint32_t port = parse_port(address);
    const std::string name = address.substr(0, address.rfind(':'));
    const bool any = port == 0;
    if (any) port = kFirstFreePort;
    const std::lock_guard lock(mutex);
    for (; port <= UINT16_MAX; ++port) {
      std::string full = fmt::format("{}:{}", name, port);
      if (listening.emplace(full, node).second) return full;
      if (!any) break;
    }
    fail(ErrorCode::kAlreadyExists, "listen on '{}': the address is taken", address);
  }
  void remove(const std::string& address) {
    const std::lock_guard lock(mutex);
    listening.erase(address);
  }
  std::shared_ptr<Node> find(const std::string& address) {
    const std::lock_guard lock(mutex);
    const auto found = listening.find(address);
    return found == listening.end() ? nullptr : found->second;
  }
};

LocalNetwork::LocalNetwork() : LocalNetwork(steady_clock()) {}
LocalNetwork::LocalNetwork(Clock& clock)
    : clock_(clock), registry_(std::make_unique<LocalRegistry>()) {}
LocalNetwork::~LocalNetwork() = default;

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalNetwork> network, TransportConfig config,
                 TransportHandler& handler)
      : network_(std::move(network)),
        clock_(network_->clock_),
        config_(std::move(config)),
        handler_(handler) {
    if (!config_.listen.empty()) address_ = network_->registry_->add(config_.listen, node_);
    thread_.emplace(clock_, [this] { run(); });
  }

  ~LocalTransport() override {
    if (!address_.empty()) network_->registry_->remove(address_);
    node_->post(Stop{});
    thread_->join();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "local"; }
  [[nodiscard]] const std::string& address() const noexcept override { return address_; }

  [[nodiscard]] PeerId connect(const std::string& address,
                               const Introduction& introduction) override {
    static_cast<void>(parse_port(address));
    const PeerId peer = node_->next_peer.fetch_add(1);
    node_->post(Connect{peer, address, introduction});
    return peer;
  }
  void send(PeerId peer, OutgoingMessage message) override {
    node_->post(Send{peer, std::move(message)});
  }
  void disconnect(PeerId peer) override { node_->post(Disconnect{peer}); }

 private:
  struct Peer {
    std::shared_ptr<Node> other;
    PeerId others_peer = 0;  // the other side's id of this connection
    std::string name;
    bool accepted = false;
    bool announced = false;  // the handler knows about it
    bool spoken = false;
    std::size_t outgoing_bytes = 0;
  };
  struct Outgoing {
    PeerId peer = 0;
    std::size_t cost = 0;
    Time deadline;
    std::shared_ptr<Transfer> transfer;
  };

  void run() {
    std::deque<Event> events;
    while (!stopped_) {
      {
        std::unique_lock lock(node_->mutex);
        const auto some = [&] { return !node_->inbox.empty(); };
        if (outgoing_.empty()) {
          clock_.wait(node_->arrived, lock, some);
        } else {
          clock_.wait_until(node_->arrived, lock, outgoing_.begin()->second.deadline, some);
        }
        events.swap(node_->inbox);
      }
      take(events);
      end_overdue();
    }
    // Outstanding functions are called; the handler is not.
    while (!peers_.empty()) {
      end(peers_.begin()->first, unavailable("the transport has been closed"),
          /*notify=*/false);
    }
    while (true) {
      {
        const std::lock_guard lock(node_->mutex);
        node_->closed = node_->inbox.empty();
        if (node_->closed) break;
        events.swap(node_->inbox);
      }
      take(events);
    }
  }

  void take(std::deque<Event>& events) {
    for (; !events.empty(); events.pop_front()) {
      std::visit([this](auto& event) { on(event); }, events.front());
    }
  }

  void on(Stop& /*event*/) { stopped_ = true; }

  void on(Connect& event) {
    if (stopped_) return;
    std::shared_ptr<Node> other = network_->registry_->find(event.address);
    Peer& peer = peers_[event.peer];
    peer.name = event.address;
    peer.announced = true;
    if (other != nullptr) peer.others_peer = other->next_peer.fetch_add(1);
    peer.other = other;
    if (other == nullptr ||
        !other->post(Opened{peer.others_peer, node_, event.peer, event.introduction})) {
      end(event.peer, unavailable(fmt::format("connection to {}: nobody listens", event.address)));
    }
  }

  void on(Opened& event) {
    const Introduction& who = event.introduction;
    if (const auto secret = config_.secret_of ? config_.secret_of(who.id) : Secret{};
        secret != who.secret) {
      const Status denied(ErrorCode::kPermissionDenied,
                          fmt::format("the secret is not that of {}", who.id));
      event.other->post(Closed{event.others_peer, denied});
      return;
    }
    if (stopped_) {
      event.other->post(Closed{event.others_peer, unavailable("the connection was refused")});
      return;
    }
    const Places::Taken place = places_.take(event.peer, who.id);
    if (!place.ok || place.gone) {
      const Status full(ErrorCode::kPoolFull, place.why);
      handler_.on_limit(TransportLimit::kPlaces, full);
      if (place.gone) end(*place.gone, full);
      if (!place.ok) {
        event.other->post(Closed{event.others_peer, full});
        return;
      }
    }
    peers_[event.peer] = {.other = event.other,
                          .others_peer = event.others_peer,
                          .name = fmt::format("local peer {}", event.peer),
                          .accepted = true,
                          .announced = true};
    const Proven proven{.id = who.id, .session = proof::random_nonce()};
    event.other->post(Accepted{event.others_peer, proven});
    handler_.on_open(event.peer, proven);
  }

  void on(Accepted& event) {
    if (peers_.contains(event.peer)) handler_.on_open(event.peer, event.who);
  }

  void on(Send& event) {
    const OutgoingMessage& message = event.message;
    const auto found = peers_.find(event.peer);
    if (stopped_ || found == peers_.end()) {
      call(message.sent, {ErrorCode::kNotFound, fmt::format("peer {}: not connected", event.peer)});
      return;
    }
    Peer& peer = found->second;
    if (const Status size =
            check_size(config_, message.type, message.header.size(), message.payload_bytes());
        !size.ok()) {
      call(message.sent, size);
      return;
    }
    const std::size_t cost = cost_of(message);
    if (const Status room = check_room(config_, peer.name, peer.outgoing_bytes, cost); !room.ok()) {
      call(message.sent, room);
      end(event.peer, room);
      return;
    }
    peer.outgoing_bytes += cost;
    auto transfer = std::make_shared<Transfer>();
    transfer->number = next_number_++;
    transfer->message = std::move(event.message);
    outgoing_[transfer->number] = {.peer = event.peer,
                                   .cost = cost,
                                   .deadline = clock_.now() + config_.send_timeout,
                                   .transfer = transfer};
    // The inbox is closed: its transport is gone, and has told us or need not tell us.
    peer.other->post(Arrived{peer.others_peer, std::move(transfer)});
  }

  void on(Arrived& event) {
    const auto found = peers_.find(event.peer);
    if (found == peers_.end()) return;
    Peer& peer = found->second;
    Transfer& transfer = *event.transfer;
    const std::size_t bytes = transfer.message.payload_bytes();
    if (const Status size =
            check_size(config_, transfer.message.type, transfer.message.header.size(), bytes);
        !size.ok()) {
      end(event.peer, size);
      return;
    }
    if (!std::exchange(peer.spoken, true)) places_.settle(event.peer);
    const std::optional<Landing> landing =
        handler_.on_message(event.peer, transfer.message.type, transfer.message.header, bytes);
    if (bytes > 0 && landing) call(landing->done, copy_payload(transfer, *landing));
    peer.other->post(Finished{transfer.number});
  }

  void on(Finished& event) {
    const auto found = outgoing_.find(event.number);
    if (found == outgoing_.end()) return;
    const Outgoing outgoing = std::move(found->second);
    outgoing_.erase(found);
    peers_.at(outgoing.peer).outgoing_bytes -= outgoing.cost;
    call(outgoing.transfer->message.sent, {});
  }

  void on(Disconnect& event) {
    end(event.peer, unavailable("the connection was closed on this side"),
        /*notify=*/false);
  }

  void on(Closed& event) { end(event.peer, event.reason); }

  /// Removes the connection on this side and tells the other side.
  void end(PeerId id, const Status& reason, bool notify = true) {
    const auto found = peers_.find(id);
    if (found == peers_.end()) return;
    const Peer peer = std::move(found->second);
    peers_.erase(found);
    places_.leave(id);
    for (auto next = outgoing_.begin(); next != outgoing_.end();) {
      if (next->second.peer != id) {
        ++next;
        continue;
      }
      const std::shared_ptr<Transfer> transfer = std::move(next->second.transfer);
      next = outgoing_.erase(next);
      {
        const std::lock_guard lock(transfer->mutex);
        transfer->cancelled = true;
      }
      call(transfer->message.sent, reason);
    }
    if (peer.other != nullptr) {
      peer.other->post(
          Closed{peer.others_peer, unavailable("the connection was closed by the other side")});
    }
    if (notify && peer.announced) handler_.on_disconnect(id, reason);
  }

  void end_overdue() {
    const Time now = clock_.now();
    while (!outgoing_.empty() && outgoing_.begin()->second.deadline <= now) {
      const PeerId id = outgoing_.begin()->second.peer;
      end(id, {ErrorCode::kDeadlineExceeded,
               fmt::format("connection to {}: it has not read for {} ms", peers_.at(id).name,
                           config_.send_timeout.count())});
    }
  }

  const std::shared_ptr<LocalNetwork> network_;
  Clock& clock_;
  const TransportConfig config_;
  TransportHandler& handler_;
  const std::shared_ptr<Node> node_ = std::make_shared<Node>();
  std::string address_;
  // Used by the thread only.
  std::unordered_map<PeerId, Peer> peers_;
  Places places_{static_cast<std::size_t>(config_.max_connections),
                 static_cast<std::size_t>(config_.max_connections_of_id)};
  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, Outgoing> outgoing_;  // oldest first
  bool stopped_ = false;
  std::optional<Thread> thread_;
};

std::unique_ptr<Transport> make_local_transport(std::shared_ptr<LocalNetwork> network,
                                                const TransportConfig& config,
                                                TransportHandler& handler) {
  return std::make_unique<LocalTransport>(std::move(network), config, handler);
}

}  // namespace tributary
