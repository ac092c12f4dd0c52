// One transport of a simulated network: keeps messages for as long as they are under way, and can
// lose a connection or its process.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/interface/condition.h"
#include "core/interface/thread.h"
#include "tests/deploy/local/simulation/simulated_network.h"

namespace tributary::test {

class SlowTransport final : public Transport, private TransportHandler {
 public:
  SlowTransport(SimulatedNetwork& network, int process, const TransportConfig& config,
                TransportHandler& handler);
  ~SlowTransport() override;

  [[nodiscard]] std::string_view name() const noexcept override { return inner_->name(); }
  [[nodiscard]] const std::string& address() const noexcept override { return inner_->address(); }
  [[nodiscard]] PeerId connect(const std::string& address,
                               const Introduction& introduction) override;
  void send(PeerId peer, OutgoingMessage message) override;
  void disconnect(PeerId peer) override;

  /// See SimulatedNetwork; for a thread that runs no handler.
  bool cut(std::size_t number);
  /// Call it before the process's threads are killed.
  void kill();

 private:
  using Sent = std::function<void(const Status&)>;
  struct Peer {
    bool open = true;    // the handler hears of it
    bool cut = false;    // and is to hear that it has ended
    int with_inner = 0;  // messages whose `sent` is not called yet
    Time in_order{};     // earlier messages are under way until then
    Time all{};          // likewise, those with payloads too
  };
  /// No message: a disconnect().
  struct Leaving {
    PeerId peer = 0;
    std::optional<OutgoingMessage> message;
  };

  void on_open(PeerId peer, const Proven& who) override;
  std::optional<Landing> on_message(PeerId peer, std::uint16_t type,
                                    std::span<const std::byte> header,
                                    std::size_t payload_bytes) override;
  void on_disconnect(PeerId peer, const Status& reason) override;
  void on_limit(TransportLimit limit, const Status& what) override;

  void run();
  void let_leave(Leaving leaving);
  void was_sent(PeerId peer, const Sent& sent, const Status& status);
  /// The handler hears that the connection has ended.
  void end(PeerId peer, const Status& reason);

  SimulatedNetwork& network_;
  const int process_;
  TransportHandler& handler_;
  std::mutex mutex_;  // guards what follows
  Condition changed_;
  std::map<PeerId, Peer> peers_;
  std::multimap<Time, Leaving> leaving_;
  bool stop_ = false;
  bool killed_ = false;
  std::unique_ptr<Transport> inner_;
  std::optional<Thread> thread_;
};

}  // namespace tributary::test
