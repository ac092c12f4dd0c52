#include "deploy/service/transport/data_transport.h"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include "comm/tcp/tcp_transport.h"
#include "core/base/quote.h"
#ifdef TRIBUTARY_HAS_UCX
#include "comm/ucx/ucx_transport.h"
#endif

namespace tributary {
namespace {

enum Kind : std::uint8_t { kTcp, kTls, kUcx };
constexpr std::size_t kKinds = 3;
constexpr std::array<std::string_view, kKinds> kSchemes{"tcp://", "tls://", "ucx://"};

struct Address {
  Kind kind{};
  std::string rest;  // ADDRESS:PORT
};

Address parse(const std::string& text) {
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    if (!text.starts_with(kSchemes.at(kind))) continue;
    return {static_cast<Kind>(kind), text.substr(kSchemes.at(kind).size())};
  }
  fail(ErrorCode::kInvalidArgument, "address {}: expected tcp://, tls:// or ucx://ADDRESS:PORT",
       quote(text));
}

#ifdef TRIBUTARY_HAS_UCX
std::unique_ptr<Transport> make_ucx(const TransportConfig& config, TransportHandler& handler) {
  return make_ucx_transport(config, handler);
}
#else
std::unique_ptr<Transport> make_ucx(const TransportConfig& /*config*/,
                                    TransportHandler& /*handler*/) {
  fail(ErrorCode::kUnsupported, "transport ucx: not in this build");
}
#endif

/// Peers of three transports share one space of ids.
constexpr PeerId outer_id(PeerId inner, Kind kind) {
  return inner * kKinds + kind;
}

/// Passes on the events of a transport of one kind, with our ids.
class Renamed final : public TransportHandler {
 public:
  Renamed(TransportHandler& handler, Kind kind) : handler_(handler), kind_(kind) {}

  void on_open(PeerId peer, const Proven& who) override {
    handler_.on_open(outer_id(peer, kind_), who);
  }
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override {
    return handler_.on_message(outer_id(peer, kind_), type, header, payload_bytes);
  }
  void on_disconnect(PeerId peer, const Status& reason) override {
    handler_.on_disconnect(outer_id(peer, kind_), reason);
  }
  void on_listener_failed(const Status& reason) override { handler_.on_listener_failed(reason); }
  void on_accepting_paused(const Status& reason) override { handler_.on_accepting_paused(reason); }
  void on_limit(TransportLimit limit, const Status& what) override {
    handler_.on_limit(limit, what);
  }

 private:
  TransportHandler& handler_;
  const Kind kind_;
};

class DataTransport final : public Transport {
 public:
  DataTransport(TransportChoice allowed, TransportConfig config, TransportHandler& handler)
      : allowed_(allowed),
        config_(std::move(config)),
        handlers_{Renamed(handler, kTcp), Renamed(handler, kTls), Renamed(handler, kUcx)} {
    if (config_.listen.empty()) return;
    const Address listen = parse(std::exchange(config_.listen, {}));
    const Transport& listening = open(listen.kind, listen.rest);
    name_ = kSchemes.at(listen.kind);
    address_ = std::string(name_) + listening.address();
    name_.remove_suffix(std::string_view("://").size());
  }

  ~DataTransport() override {
    for (std::size_t kind = 0; kind < kKinds; ++kind) {
      // A handler may still send by this transport, or by one that is already gone.
      running_.at(kind) = nullptr;
      owned_.at(kind).reset();
    }
  }

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] const std::string& address() const noexcept override { return address_; }

  [[nodiscard]] PeerId connect(const std::string& address,
                               const Introduction& introduction) override {
    const Address to = parse(address);
    const bool refused =
        allowed_ == (to.kind == kUcx ? TransportChoice::kTcp : TransportChoice::kUcx);
    if (refused) {
      fail(ErrorCode::kUnsupported, "address {}: transport {} was asked for", quote(address),
           transport_choice_name(allowed_));
    }
    return outer_id(open(to.kind, {}).connect(to.rest, introduction), to.kind);
  }
  void send(PeerId peer, OutgoingMessage message) override {
    if (Transport* transport = running_.at(peer % kKinds)) {
      transport->send(peer / kKinds, std::move(message));
    } else if (message.sent) {
      message.sent({ErrorCode::kNotFound, fmt::format("peer {}: not connected", peer)});
    }
  }
  void disconnect(PeerId peer) override {
    if (Transport* transport = running_.at(peer % kKinds)) transport->disconnect(peer / kKinds);
  }
  /// By a transport that runs alone: others would wait meanwhile.
  [[nodiscard]] bool work_until(Time until, const std::function<bool()>& done) override {
    Transport* alone = nullptr;
    for (Transport* transport : running_) {
      if (transport == nullptr) continue;
      if (alone != nullptr) return false;
      alone = transport;
    }
    return alone != nullptr && alone->work_until(until, done);
  }
  void wake() override {
    for (Transport* transport : running_) {
      if (transport != nullptr) transport->wake();
    }
  }

 private:
  /// The transport of a kind, which listens if it is made for that.
  Transport& open(Kind kind, const std::string& listen) {
    const std::lock_guard lock(mutex_);
    std::unique_ptr<Transport>& owned = owned_.at(kind);
    if (owned == nullptr) {
      TransportConfig config = config_;
      config.listen = listen;
      if (kind != kTls) config.tls.reset();
      if (kind == kTls && !config.tls) config.tls.emplace();
      TransportHandler& handler = handlers_.at(kind);
      owned = kind == kUcx ? make_ucx(config, handler) : make_tcp_transport(config, handler);
      running_.at(kind) = owned.get();
    }
    return *owned;
  }

  const TransportChoice allowed_;
  TransportConfig config_;  // `listen` is empty
  std::array<Renamed, kKinds> handlers_;
  std::string_view name_ = "data";  // by the scheme at which it listens
  std::string address_;
  std::mutex mutex_;
  std::array<std::unique_ptr<Transport>, kKinds> owned_;  // mutex_
  std::array<std::atomic<Transport*>, kKinds> running_{};
};

}  // namespace

MakeTransport make_data_transport(TransportChoice allowed) {
  return [allowed](const TransportConfig& config, TransportHandler& handler) {
    return std::make_unique<DataTransport>(allowed, config, handler);
  };
}

#ifdef TRIBUTARY_HAS_UCX
std::string rdma_ports() {
  return ucx_rdma_ports();
}
std::string ucx_text() {
  return ucx_version();
}
#else
std::string rdma_ports() {
  return {};
}
std::string ucx_text() {
  return "not in this build";
}
#endif

}  // namespace tributary
