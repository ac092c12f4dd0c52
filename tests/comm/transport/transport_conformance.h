// The suite that every transport passes. An implementation joins with a file that says how to make
// one:
//
//   INSTANTIATE_TEST_SUITE_P(Local, TransportConformance, testing::Values(maker), maker_name);
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transport/transport.h"
#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::testing_support {

struct TransportMaker {
  std::string name;    // letters and digits; becomes part of the test's name
  std::string listen;  // an address with port 0
  std::string nobody;  // an address where nobody listens
  /// Called once a test: the transports that it makes can meet.
  std::function<Endpoint::Make()> network;
};

class TransportConformance : public testing::TestWithParam<TransportMaker> {
 protected:
  // Dozens of encrypted connections at once take seconds under a sanitizer.
  [[nodiscard]] static TransportConfig listening() {
    return {.listen = GetParam().listen, .connect_timeout = kAmple};
  }
  [[nodiscard]] static TransportConfig connecting() { return {.connect_timeout = kAmple}; }
  const Endpoint::Make make_ = GetParam().network();
};

/// Sends every payload back, from a copy that lives until it is sent.
class EchoServer {
 public:
  /// `itself`: as whom it may connect to itself.
  EchoServer(const Endpoint::Make& make, const TransportConfig& config,
             const Introduction& itself = {})
      : endpoint_(make, config), itself_(itself), thread_([this] { run(); }) {}
  ~EchoServer() {
    stop_ = true;
    // A message to itself wakes it.
    Endpoint& self = endpoint_;
    self.send(self.transport().connect(self.address(), itself_), 0, "stop");
    thread_.join();
  }
  EchoServer(const EchoServer&) = delete;
  EchoServer& operator=(const EchoServer&) = delete;
  Endpoint& endpoint() { return endpoint_; }

 private:
  void run() {
    while (true) {
      Received message = endpoint_.receive();
      if (stop_ && message.type == 0) return;
      EXPECT_TRUE(message.status.ok()) << message.status.message();
      auto payload = std::make_shared<std::vector<std::byte>>(std::move(message.payload));
      endpoint_.transport().send(message.peer, {.type = message.type,
                                                .header = std::move(message.header),
                                                .payload = {*payload},
                                                .sent = [payload](const Status& /*status*/) {}});
    }
  }

  Endpoint endpoint_;
  const Introduction itself_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

[[nodiscard]] inline std::string maker_name(const testing::TestParamInfo<TransportMaker>& info) {
  return info.param.name;
}

}  // namespace tributary::testing_support
