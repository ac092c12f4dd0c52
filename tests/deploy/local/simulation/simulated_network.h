// The network of a simulated tier: comm/local, whose messages take time to leave, and whose
// connections and processes end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "comm/local/local_transport.h"
#include "comm/transport/transport.h"
#include "core/interface/simulated_clock.h"

namespace tributary::test {

class SlowTransport;

/// Processes are those of the clock. What a process leaves to its operating system, the transport
/// of comm/local, belongs to another one (system_of), which survives it and closes its connections.
class SimulatedNetwork {
 public:
  struct Events {
    /// How long a message of a process is under way before comm/local gets it.
    std::function<Duration()> delay;
    /// A message has arrived at a process.
    std::function<void(int process, std::uint16_t type, std::span<const std::byte> header)> header;
    std::function<void(int process, std::uint16_t type, std::span<const std::byte> header,
                       std::span<const std::byte> payload)>
        payload;
  };

  SimulatedNetwork(SimulatedClock& clock, Events events);

  [[nodiscard]] MakeTransport of(int process);
  /// Breaks a connection of the process, that of `number` modulo how many there are: both sides
  /// see it end. Returns false where there is none.
  bool cut(int process, std::size_t number);
  /// The process, with its threads, is gone, and its connections end.
  void kill(int process);
  /// At the end of a run: the systems of killed processes end too.
  void forget_killed();

 private:
  friend class SlowTransport;
  [[nodiscard]] static int system_of(int process) { return process + 1000; }

  SimulatedClock& clock_;
  Events events_;
  std::shared_ptr<LocalNetwork> wires_;
  std::map<int, std::vector<SlowTransport*>> transports_;  // by process
  std::set<int> killed_;
  std::set<std::string> nobody_listens_;
};

}  // namespace tributary::test
