// Workers behind a transport in simulated time: one thread, no sockets, and every message takes
// kHop.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/transport/transport.h"
#include "core/base/error.h"
#include "core/interface/manual_clock.h"
#include "deploy/service/protocol/client_messages.h"

namespace tributary::test {

class SimulatedWorkers {
 public:
  static constexpr std::chrono::milliseconds kHop{1};
  explicit SimulatedWorkers(ManualClock& clock) : clock_(clock) {}

  /// By default a worker does what it is asked. No value means no answer.
  struct Worker {
    Status refusal;  // of connections; ok: none
    bool welcomes = true;
    Duration thinks{};           // before it answers a round
    bool takes_payloads = true;  // otherwise they stay in the sender's memory
    bool lands_payloads = true;  // of its answers; otherwise they are still being received
    Duration lets_go{};          // of the caller's memory, after the connection has been cut
    std::function<std::optional<wire::ControlReply>(const wire::Control&)> on_control = {};
    std::function<std::optional<wire::LayerReply>(const wire::LayerRequest&)> on_round = {};
    std::function<std::optional<wire::RowsReply>(const wire::Rows&)> on_rows = {};
    struct PullAnswer {
      wire::PullReply reply;  // request is filled in, and crc32c where it is 0
      std::vector<std::byte> rows;
    };
    std::function<std::optional<PullAnswer>(const wire::Pull&)> on_pull = {};

    // When what came.
    std::vector<Time> connects, controls, rounds, rows;
    std::vector<wire::Pull> pulls;
  };
  [[nodiscard]] Worker& at(const std::string& address) { return workers_[address]; }
  static Status refused() { return {ErrorCode::kUnavailable, "Connection refused"}; }
  /// Ends the connections to the worker.
  void cut(const std::string& address);

  /// For one client, which this object outlives.
  [[nodiscard]] MakeTransport make_transport();

 private:
  class Network;
  ManualClock& clock_;
  std::map<std::string, Worker> workers_;
  std::weak_ptr<Network> network_;
};

/// The address of a worker.
inline constexpr const char* kOne = "tcp://one:1";

/// Milliseconds since the clock's begin.
[[nodiscard]] std::vector<std::int64_t> in_ms(const std::vector<Time>& times);

}  // namespace tributary::test
