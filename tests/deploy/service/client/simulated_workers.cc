#include "tests/deploy/service/client/simulated_workers.h"

#include <algorithm>
#include <span>
#include <utility>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"
#include "core/base/error.h"

namespace tributary::test {

/// The connections of one client. Events hold it weakly: what is on its way when the client ends is
/// lost.
class SimulatedWorkers::Network : public std::enable_shared_from_this<Network> {
 public:
  Network(SimulatedWorkers& workers, TransportHandler& handler)
      : workers_(workers), handler_(handler) {}

  PeerId connect(const std::string& address, const Introduction& introduction) {
    const PeerId peer = ++last_;
    connections_[peer].address = address;
    workers_.at(address).connects.push_back(workers_.clock_.now());
    later(peer, [this, peer, address, introduction] {
      const Status refusal = workers_.at(address).refusal;
      if (!refusal.ok()) return end(peer, refusal);
      handler_.on_open(peer, {.id = introduction.id, .session = {}});
    });
    return peer;
  }

  void send(PeerId peer, OutgoingMessage message) {
    const auto found = connections_.find(peer);
    if (found == connections_.end()) {
      if (message.sent) message.sent({ErrorCode::kNotFound, "no such peer"});
      return;
    }
    if (message.payload_bytes() > 0 && !workers_.at(found->second.address).takes_payloads) {
      // Its bytes are still read when it lets go of them.
      found->second.held.emplace_back([message = std::move(message)](const Status& status) {
        std::uint32_t crc = 0;
        for (const auto piece : message.payload) crc = wire::crc32c(piece, crc);
        message.sent(crc == 0 ? Status{ErrorCode::kInternal, "no bytes"} : status);
      });
      return;
    }
    if (message.sent) message.sent({});
    later(peer, [this, peer, type = message.type, header = std::move(message.header)] {
      receive(peer, static_cast<wire::MessageType>(type), header);
    });
  }

  void disconnect(PeerId peer) {
    const auto found = connections_.find(peer);
    if (found == connections_.end()) return;
    // Not from inside disconnect(): its caller may hold a lock.
    const Duration delay = workers_.at(found->second.address).lets_go;
    workers_.clock_.after(delay, [held = std::move(found->second.held)] {
      for (const auto& let_go : held) let_go({ErrorCode::kUnavailable, "disconnected"});
    });
    connections_.erase(found);
  }

  void cut(const std::string& address) {
    std::vector<PeerId> peers;
    for (const auto& [peer, connection] : connections_) {
      if (connection.address == address) peers.push_back(peer);
    }
    for (const PeerId peer : peers) end(peer, {ErrorCode::kUnavailable, "Connection reset"});
  }

 private:
  struct Connection {
    std::string address;
    std::vector<std::function<void(const Status&)>> held;
  };

  /// After a hop, if the connection is still there.
  void later(PeerId peer, std::function<void()> event, Duration delay = {}) {
    workers_.clock_.after(kHop + delay, [weak = weak_from_this(), peer, event = std::move(event)] {
      const auto network = weak.lock();
      if (network && network->connections_.contains(peer)) event();
    });
  }
  void end(PeerId peer, const Status& reason) {
    disconnect(peer);
    handler_.on_disconnect(peer, reason);
  }

  template <wire::Message Reply>
  void answer(PeerId peer, const Reply& reply, std::vector<std::byte> payload = {},
              Duration delay = {}) {
    later(
        peer,
        [this, peer, header = wire::encode(reply), payload = std::move(payload)] {
          const auto landing = handler_.on_message(peer, static_cast<std::uint16_t>(Reply::kType),
                                                   header, payload.size());
          if (!landing || payload.empty()) return;
          const auto land = [landing = *landing, payload](const Status& status) {
            std::span<const std::byte> rest = payload;
            for (const std::span<std::byte> piece : landing.pieces) {
              std::ranges::copy(rest.first(piece.size()), piece.begin());
              rest = rest.subspan(piece.size());
            }
            if (landing.inspect) landing.inspect(payload);
            landing.done(status);
          };
          Connection& connection = connections_.at(peer);
          if (workers_.at(connection.address).lands_payloads) return land({});
          connection.held.emplace_back(land);
        },
        delay);
  }

  void receive(PeerId peer, wire::MessageType type, std::span<const std::byte> header) {
    Worker& worker = workers_.at(connections_.at(peer).address);
    const Time now = workers_.clock_.now();
    switch (type) {
      case wire::MessageType::kHello:
        if (worker.welcomes) {
          answer(peer,
                 wire::Welcome{.outcome = {}, .shape = wire::decode<wire::Hello>(header).shape});
        }
        break;
      case wire::MessageType::kProve: {
        wire::ProveReply judgement;
        judgement.items.resize(wire::decode<wire::Prove>(header).items.size(), {ErrorCode::kOk});
        answer(peer, judgement);
        break;
      }
      case wire::MessageType::kControl: {
        worker.controls.push_back(now);
        const auto control = wire::decode<wire::Control>(header);
        auto reply = std::optional<wire::ControlReply>(std::in_place);
        for (const wire::ControlItem& item : control.items) {
          reply->items.push_back({ErrorCode::kOk, item.epoch, item.length});
        }
        if (worker.on_control) reply = worker.on_control(control);
        if (!reply) break;
        reply->request = control.request;
        answer(peer, *reply);
        break;
      }
      case wire::MessageType::kRows: {
        worker.rows.push_back(now);
        const auto rows = wire::decode<wire::Rows>(header);
        auto reply = std::optional<wire::RowsReply>(std::in_place);
        if (worker.on_rows) reply = worker.on_rows(rows);
        if (!reply) break;
        reply->request = rows.request;
        answer(peer, *reply);
        break;
      }
      case wire::MessageType::kPull: {
        const auto pull = wire::decode<wire::Pull>(header);
        worker.pulls.push_back(pull);
        auto reply = worker.on_pull(pull);
        if (!reply) break;
        reply->reply.request = pull.request;
        if (reply->reply.crc32c == 0) reply->reply.crc32c = wire::crc32c(reply->rows);
        answer(peer, reply->reply, std::move(reply->rows));
        break;
      }
      case wire::MessageType::kLayerRequest: {
        worker.rounds.push_back(now);
        const auto round = wire::decode<wire::LayerRequest>(header);
        auto reply = std::optional<wire::LayerReply>(std::in_place);
        reply->items.assign(round.items.size(), ErrorCode::kOk);
        if (worker.on_round) reply = worker.on_round(round);
        if (!reply) break;
        std::size_t tokens = 0;
        for (std::size_t i = 0; i < round.items.size(); ++i) {
          if (reply->items[i] == ErrorCode::kOk)
            tokens += static_cast<std::size_t>(round.items[i].tokens);
        }
        std::vector<std::byte> payload(tokens * kOutputBytes);
        reply->request = round.request;
        reply->crc32c = wire::crc32c(payload);
        answer(peer, *reply, std::move(payload), worker.thinks);
        break;
      }
      default:
        fail(ErrorCode::kInternal, "message of type {}", static_cast<int>(type));
    }
  }

  /// Of a token of test::small_shape(), attended.
  static constexpr std::size_t kOutputBytes = std::size_t{2} * 5 * sizeof(float);

  SimulatedWorkers& workers_;
  TransportHandler& handler_;
  PeerId last_ = 0;
  std::map<PeerId, Connection> connections_;
};

void SimulatedWorkers::cut(const std::string& address) {
  if (const auto network = network_.lock()) network->cut(address);
}

MakeTransport SimulatedWorkers::make_transport() {
  class Client final : public Transport {
   public:
    explicit Client(std::shared_ptr<Network> network) : network_(std::move(network)) {}
    [[nodiscard]] std::string_view name() const noexcept override { return "simulated"; }
    [[nodiscard]] const std::string& address() const noexcept override { return address_; }
    using Transport::connect;
    [[nodiscard]] PeerId connect(const std::string& address,
                                 const Introduction& introduction) override {
      return network_->connect(address, introduction);
    }
    void send(PeerId peer, OutgoingMessage message) override {
      network_->send(peer, std::move(message));
    }
    void disconnect(PeerId peer) override { network_->disconnect(peer); }

   private:
    std::shared_ptr<Network> network_;
    std::string address_;
  };
  return [this](const TransportConfig& /*config*/, TransportHandler& handler) {
    auto network = std::make_shared<Network>(*this, handler);
    network_ = network;
    return std::make_unique<Client>(std::move(network));
  };
}

std::vector<std::int64_t> in_ms(const std::vector<Time>& times) {
  std::vector<std::int64_t> result;
  result.reserve(times.size());
  for (const Time time : times) {
    result.push_back(
        std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count());
  }
  return result;
}

}  // namespace tributary::test
