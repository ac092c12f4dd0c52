// A server that answers every message, and an honest client that asks: tests use them to see what
// strangers can disturb.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "comm/transport/transport.h"
#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::testing_support {

/// Answers every message with "here".
class AnsweringServer {
 public:
  AnsweringServer(const Endpoint::Make& make, const TransportConfig& config)
      : endpoint_(make, config,
                  [](Endpoint& self, PeerId peer, std::uint16_t type,
                     std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
                    self.send(peer, type, "here");
                    return true;
                  }) {}
  [[nodiscard]] const std::string& address() const { return endpoint_.address(); }
  [[nodiscard]] bool wait_disconnects(std::size_t n) { return endpoint_.wait_disconnects(n); }
  [[nodiscard]] std::size_t disconnects() { return endpoint_.disconnects(); }

 private:
  Endpoint endpoint_;
};

class AskingClient {
 public:
  AskingClient(const Endpoint::Make& make, const std::string& address,
               const Introduction& introduction = {},
               const TransportConfig& config = {.connect_timeout = kAmple})
      : endpoint_(make, config), peer_(endpoint_.transport().connect(address, introduction)) {}
  void ask() { endpoint_.send(peer_, 3, "who is there?"); }
  void expect_answer() {
    ask();
    EXPECT_EQ(endpoint_.receive().header, to_bytes("here"));
    EXPECT_EQ(endpoint_.disconnects(), 0);
  }
  [[nodiscard]] Status wait_disconnect() { return endpoint_.wait_disconnect(peer_); }
  [[nodiscard]] Endpoint& endpoint() { return endpoint_; }
  [[nodiscard]] PeerId peer() const { return peer_; }

 private:
  Endpoint endpoint_;
  PeerId peer_;
};

}  // namespace tributary::testing_support
