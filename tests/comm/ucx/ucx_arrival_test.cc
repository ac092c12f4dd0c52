// Clients that end at any moment while they connect. The server, in its own process, must survive
// them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/ucx/ucx_transport.h"
#include "tests/comm/transport/transport_endpoint.h"
#include "tests/comm/ucx/peer_program.h"
#include "tests/sanitized.h"

namespace tributary::testing_support {
namespace {

using std::chrono::steady_clock;

/// A client of a sanitized build searches for leaks when it ends, which takes a second.
constexpr int kRounds = test::kSanitized ? 8 : 40;
constexpr int kClients = 4;
/// Longer than connecting takes; the rounds divide it into equal steps.
constexpr std::chrono::microseconds kArrival{3000};

/// An echo server, and a client that checks that it still answers.
class Server {
 public:
  [[nodiscard]] PeerProgram& program() { return program_; }
  [[nodiscard]] std::string address() const { return address_; }
  [[nodiscard]] bool answers() {
    client_.send(peer_, 1, "are you there?");
    return client_.receive().header == to_bytes("are you there?") && client_.disconnects() == 0;
  }

 private:
  PeerProgram program_{{"echo"}};
  std::string address_ = program_.read_line();
  Endpoint client_{make_ucx_transport, {}};
  PeerId peer_ = client_.transport().connect(address_);
};

/// So few ports for UCX that clients reuse those of dead clients.
const std::vector<std::string> kFewPorts{"UCX_TCP_PORT_RANGE=23000-23127"};

/// Starts clients that are ready to connect.
std::vector<std::unique_ptr<PeerProgram>> clients_of(
    const Server& server, const std::vector<std::string>& environment = {}) {
  std::vector<std::unique_ptr<PeerProgram>> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<PeerProgram>(
        std::vector<std::string>{"knock", server.address()}, environment));
  }
  for (const auto& client : clients) EXPECT_EQ(client->read_line(), "ready");
  return clients;
}

/// Lets the clients connect, and returns at a different moment of that in each round.
void let_in(const std::vector<std::unique_ptr<PeerProgram>>& clients, int round) {
  const auto moment = steady_clock::now() + kArrival * round / kRounds;
  for (const auto& client : clients) client->write_line();
  while (steady_clock::now() < moment) {
  }
}

}  // namespace

// The server reads what they have sent after their death.
TEST(UcxArrival, ClientsAreKilledWhileTheServerIsSlow) {
  Server server;
  for (int round = 0; round < kRounds; ++round) {
    auto clients = clients_of(server, kFewPorts);
    let_in(clients, round);
    server.program().signal(SIGSTOP);
    clients.clear();
    server.program().signal(SIGCONT);
    ASSERT_TRUE(server.answers()) << "round " << round;
  }
}

TEST(UcxArrival, ClientsAreStoppedAndThenKilled) {
  Server server;
  for (int round = 0; round < kRounds; ++round) {
    auto clients = clients_of(server, kFewPorts);
    let_in(clients, round);
    for (const auto& client : clients) client->signal(SIGSTOP);
    ASSERT_TRUE(server.answers()) << "round " << round;
    clients.clear();
    ASSERT_TRUE(server.answers()) << "round " << round;
  }
}

// The clients close their transports in order.
TEST(UcxArrival, ClientsLeave) {
  Server server;
  for (int round = 0; round < kRounds; ++round) {
    auto clients = clients_of(server);
    let_in(clients, round);
    for (const auto& client : clients) EXPECT_EQ(client->end_input(), 0);
    ASSERT_TRUE(server.answers()) << "round " << round;
  }
}

// The reverse. Over TCP, UCX 1.13 itself aborts a client in some 1 of 1,000 of these deaths (an
// assertion of tcp_ep.c), which nothing outside it prevents: see deploy/recipes/threats.md.
// Whatever else ends a client, or keeps it from ending, is ours.
TEST(UcxArrival, TheServerIsKilled) {
  for (int round = 0; round < kRounds / 4; ++round) {
    Server server;
    auto clients = clients_of(server);
    let_in(clients, round * 4);
    server.program().signal(SIGKILL);
    for (const auto& client : clients) {
      EXPECT_THAT(client->end_input(), testing::AnyOf(0, -SIGABRT)) << "round " << round;
    }
  }
}

}  // namespace tributary::testing_support
