#include "tests/comm/transport/relay.h"

#include <utility>

#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::testing_support {

Relay::Relay(std::string server, Change change)
    : server_(std::move(server)), change_(std::move(change)), thread_([this] { run(); }) {}

Relay::~Relay() {
  listener_.end();
  thread_.join();
}

std::vector<std::byte> Relay::client_said() {
  const std::lock_guard lock(mutex_);
  return said_;
}

void Relay::run() {
  const int fd = listener_.accept();
  if (fd < 0) return;
  const Stranger client(fd);
  const Stranger server(server_, kAmple);  // what it hands on must not be cut by a stall
  std::thread back([&] { hand_on(server, client, false); });
  hand_on(client, server, true);
  back.join();
}

void Relay::hand_on(const Stranger& from, const Stranger& to, bool to_server) {
  std::size_t at = 0;
  while (true) {
    std::vector<std::byte> bytes = from.hear_some();
    const std::size_t heard = bytes.size();
    if (to_server) {
      const std::lock_guard lock(mutex_);
      said_.insert(said_.end(), bytes.begin(), bytes.end());
    }
    if (heard > 0 && change_) change_(to_server, at, bytes);
    to.say(bytes);
    if (bytes.empty() || bytes.size() < heard) break;
    at += heard;
  }
  // Both ends read the end.
  to.end_saying();
  from.end_saying();
}

}  // namespace tributary::testing_support
