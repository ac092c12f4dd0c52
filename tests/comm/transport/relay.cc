#include "tests/comm/transport/relay.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::testing_support {

Relay::Relay(std::string server, Change change)
    : server_(std::move(server)), change_(std::move(change)) {
  listening_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(any);
  EXPECT_EQ(bind(listening_, reinterpret_cast<const sockaddr*>(&any), size), 0);
  EXPECT_EQ(listen(listening_, 1), 0);
  EXPECT_EQ(getsockname(listening_, reinterpret_cast<sockaddr*>(&any), &size), 0);
  address_ = fmt::format("127.0.0.1:{}", ntohs(any.sin_port));
  thread_ = std::thread([this] { run(); });
}

Relay::~Relay() {
  shutdown(listening_, SHUT_RDWR);  // ends an accept that waits
  thread_.join();
  close(listening_);
}

std::vector<std::byte> Relay::client_said() {
  const std::lock_guard lock(mutex_);
  return said_;
}

void Relay::run() {
  const int fd = accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
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
