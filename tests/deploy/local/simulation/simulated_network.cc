#include "tests/deploy/local/simulation/simulated_network.h"

#include <utility>

#include "tests/deploy/local/simulation/slow_transport.h"

namespace tributary::test {

SimulatedNetwork::SimulatedNetwork(SimulatedClock& clock, Events events)
    : clock_(clock), events_(std::move(events)), wires_(std::make_shared<LocalNetwork>(clock)) {}

MakeTransport SimulatedNetwork::of(int process) {
  return [this, process](const TransportConfig& config, TransportHandler& handler) {
    return std::make_unique<SlowTransport>(*this, process, config, handler);
  };
}

bool SimulatedNetwork::cut(int process, std::size_t number) {
  const auto found = transports_.find(process);
  if (found == transports_.end()) return false;
  for (SlowTransport* transport : found->second) {
    if (transport->cut(number)) return true;
  }
  return false;
}

void SimulatedNetwork::kill(int process) {
  killed_.insert(process);
  if (const auto found = transports_.find(process); found != transports_.end()) {
    for (SlowTransport* transport : found->second) {
      nobody_listens_.insert(transport->address());
      transport->kill();
    }
  }
  clock_.kill(process);
}

void SimulatedNetwork::forget_killed() {
  for (const int process : killed_) clock_.kill(system_of(process));
}

}  // namespace tributary::test
