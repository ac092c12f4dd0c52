// Each transport is a thread with an inbox. Connections are entries on both sides that name each
// other; everything about a connection happens on the threads of its two sides.
#include "comm/local/local_transport.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <variant>

namespace tributary {
namespace {

using Clock = std::chrono::steady_clock;

Status unavailable(std::string message) {
  return {ErrorCode::kUnavailable, std::move(message)};
}

/// Whether a message is within the limits of the one side or the other.
Status check_size(const TransportConfig& config, const OutgoingMessage& message) {
  if (message.header.size() <= config.max_header_bytes &&
      message.payload.size() <= config.max_payload_bytes) {
    return {};
  }
  return {ErrorCode::kTooLarge,
          fmt::format("message {}: header of {} bytes (at most {}), payload of {} (at most {})",
                      message.type, message.header.size(), config.max_header_bytes,
                      message.payload.size(), config.max_payload_bytes)};
}

/// What a message counts for in max_outgoing_bytes beyond its bytes: the state that it keeps.
constexpr std::size_t kMessageCost = 128;
constexpr std::uint16_t kFirstFreePort = 1024;

/// A message on its way. The payload is its sender's until `cancelled`, which waits for a copy that
/// is under way.
struct Transfer {
  std::uint64_t number = 0;  // among its sender's
  OutgoingMessage message;
  std::mutex mutex;
  bool cancelled = false;
};

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

Status copy_payload(Transfer& transfer, const Landing& landing) {
  const std::lock_guard lock(transfer.mutex);
  if (transfer.cancelled) return unavailable("the sender has gone");
  std::size_t bytes = 0;
  for (const auto& piece : landing.pieces) bytes += piece.size();
  if (bytes != transfer.message.payload.size()) {
    return {ErrorCode::kInternal, "landing of another size than the payload"};
  }
  if (landing.inspect) landing.inspect(transfer.message.payload);
  auto from = transfer.message.payload.begin();
  for (const auto& piece : landing.pieces) {
    std::copy_n(std::exchange(from, from + std::ssize(piece)), piece.size(), piece.begin());
  }
  return {};
}

void call(const std::function<void(const Status&)>& function, const Status& status) {
  if (function) function(status);
}
struct Node;

// From the transport's own callers.
struct Connect {
  PeerId peer;
  std::string address;
};
struct Send {
  PeerId peer;
  OutgoingMessage message;
};
struct Disconnect {
  PeerId peer;
};
struct Stop {};
// From other transports; `peer` is the receiver's.
struct Opened {
  PeerId peer;
  std::shared_ptr<Node> other;
  PeerId others_peer;
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
using Event = std::variant<Connect, Send, Disconnect, Stop, Opened, Arrived, Finished, Closed>;

/// What others see of a transport. It may outlive it: then it is closed.
struct Node {
  std::mutex mutex;
  std::condition_variable arrived;
  std::deque<Event> inbox;
  bool closed = false;
  std::atomic<PeerId> next_peer{1};

  bool post(Event event) {
    const std::lock_guard lock(mutex);
    if (closed) return false;
    inbox.push_back(std::move(event));
    arrived.notify_one();
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

LocalNetwork::LocalNetwork() : registry_(std::make_unique<LocalRegistry>()) {}
LocalNetwork::~LocalNetwork() = default;

class LocalTransport final : public Transport {
 public:
  LocalTransport(std::shared_ptr<LocalNetwork> network, TransportConfig config,
                 TransportHandler& handler)
      : network_(std::move(network)), config_(std::move(config)), handler_(handler) {
    if (!config_.listen.empty()) address_ = network_->registry_->add(config_.listen, node_);
    thread_ = std::thread([this] { run(); });
  }

  ~LocalTransport() override {
    if (!address_.empty()) network_->registry_->remove(address_);
    node_->post(Stop{});
    thread_.join();
  }

  [[nodiscard]] std::string_view name() const noexcept override { return "local"; }
  [[nodiscard]] const std::string& address() const noexcept override { return address_; }

  [[nodiscard]] PeerId connect(const std::string& address) override {
    static_cast<void>(parse_port(address));
    const PeerId peer = node_->next_peer.fetch_add(1);
    node_->post(Connect{peer, address});
    return peer;
  }
  void send(PeerId peer, OutgoingMessage message) override {
    node_->post(Send{peer, std::move(message)});
  }
  void disconnect(PeerId peer) override { node_->post(Disconnect{peer}); }

 private:
  struct Peer {
    std::shared_ptr<Node> other;
    PeerId others_peer = 0;  // what the other side calls this connection
    std::string name;
    bool accepted = false;
    bool announced = false;  // the handler knows it
    std::size_t outgoing_bytes = 0;
  };
  struct Outgoing {
    PeerId peer = 0;
    std::size_t cost = 0;
    Clock::time_point deadline;
    std::shared_ptr<Transfer> transfer;
  };

  void run() {
    std::deque<Event> events;
    while (!stopped_) {
      {
        std::unique_lock lock(node_->mutex);
        const auto some = [&] { return !node_->inbox.empty(); };
        if (outgoing_.empty()) {
          node_->arrived.wait(lock, some);
        } else {
          node_->arrived.wait_until(lock, outgoing_.begin()->second.deadline, some);
        }
        events.swap(node_->inbox);
      }
      take(events);
      end_overdue();
    }
    // What was due before the end is called; the handler is not.
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
    if (other == nullptr || !other->post(Opened{peer.others_peer, node_, event.peer})) {
      end(event.peer, unavailable(fmt::format("connection to {}: nobody listens", event.address)));
    }
  }

  void on(Opened& event) {
    if (stopped_ || accepted_ >= config_.max_connections) {
      event.other->post(Closed{event.others_peer, unavailable("the connection was refused")});
      return;
    }
    peers_[event.peer] = {.other = event.other,
                          .others_peer = event.others_peer,
                          .name = fmt::format("local peer {}", event.peer),
                          .accepted = true};
    ++accepted_;
  }

  void on(Send& event) {
    const OutgoingMessage& message = event.message;
    const auto found = peers_.find(event.peer);
    if (stopped_ || found == peers_.end()) {
      call(message.sent, {ErrorCode::kNotFound, fmt::format("peer {}: not connected", event.peer)});
      return;
    }
    Peer& peer = found->second;
    if (const Status size = check_size(config_, message); !size.ok()) {
      call(message.sent, size);
      return;
    }
    // One message always may go: it is bounded by itself.
    const std::size_t cost = kMessageCost + message.header.size() + message.payload.size();
    if (peer.outgoing_bytes > 0 && peer.outgoing_bytes + cost > config_.max_outgoing_bytes) {
      const Status status(ErrorCode::kDeadlineExceeded,
                          fmt::format("connection to {}: it does not read: {} bytes wait, at most "
                                      "{}",
                                      peer.name, peer.outgoing_bytes, config_.max_outgoing_bytes));
      call(message.sent, status);
      end(event.peer, status);
      return;
    }
    peer.outgoing_bytes += cost;
    auto transfer = std::make_shared<Transfer>();
    transfer->number = next_number_++;
    transfer->message = std::move(event.message);
    outgoing_[transfer->number] = {.peer = event.peer,
                                   .cost = cost,
                                   .deadline = Clock::now() + config_.send_timeout,
                                   .transfer = transfer};
    // A closed inbox: its transport has told us, or will not have to, that it is gone.
    peer.other->post(Arrived{peer.others_peer, std::move(transfer)});
  }

  void on(Arrived& event) {
    const auto found = peers_.find(event.peer);
    if (found == peers_.end()) return;
    Peer& peer = found->second;
    Transfer& transfer = *event.transfer;
    const std::size_t bytes = transfer.message.payload.size();
    if (const Status size = check_size(config_, transfer.message); !size.ok()) {
      end(event.peer, size);
      return;
    }
    peer.announced = true;
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

  /// Takes the connection away on this side and tells the other.
  void end(PeerId id, const Status& reason, bool notify = true) {
    const auto found = peers_.find(id);
    if (found == peers_.end()) return;
    const Peer peer = std::move(found->second);
    peers_.erase(found);
    if (peer.accepted) --accepted_;
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
    const auto now = Clock::now();
    while (!outgoing_.empty() && outgoing_.begin()->second.deadline <= now) {
      const PeerId id = outgoing_.begin()->second.peer;
      end(id, {ErrorCode::kDeadlineExceeded,
               fmt::format("connection to {}: it has not read for {} ms", peers_.at(id).name,
                           config_.send_timeout.count())});
    }
  }

  const std::shared_ptr<LocalNetwork> network_;
  const TransportConfig config_;
  TransportHandler& handler_;
  const std::shared_ptr<Node> node_ = std::make_shared<Node>();
  std::string address_;
  // Of the thread.
  std::unordered_map<PeerId, Peer> peers_;
  int accepted_ = 0;
  std::uint64_t next_number_ = 1;
  std::map<std::uint64_t, Outgoing> outgoing_;  // oldest first
  bool stopped_ = false;
  std::thread thread_;
};

std::unique_ptr<Transport> make_local_transport(std::shared_ptr<LocalNetwork> network,
                                                const TransportConfig& config,
                                                TransportHandler& handler) {
  return std::make_unique<LocalTransport>(std::move(network), config, handler);
}

}  // namespace tributary
