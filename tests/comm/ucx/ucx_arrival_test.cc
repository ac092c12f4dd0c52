// Clients that end in the instant of their arrival, at every moment of it: the server, a process of
// its own, outlives them.
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

/// Every client of a sanitized build looks for leaks when it ends, which takes it a second.
constexpr int kRounds = test::kSanitized ? 8 : 40;
constexpr int kClients = 4;
/// Longer than an arrival takes; the rounds go through it in equal steps.
constexpr std::chrono::microseconds kArrival{3000};

/// An echo server with a client that asks whether it lives.
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

/// So few ports of UCX's that clients get those of dead ones.
const std::vector<std::string> kFewPorts{"UCX_TCP_PORT_RANGE=23000-23127"};

/// That are ready to connect.
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

/// They connect, and this returns at another moment of their arrival in each round.
void let_in(const std::vector<std::unique_ptr<PeerProgram>>& clients, int round) {
  const auto moment = steady_clock::now() + kArrival * round / kRounds;
  for (const auto& client : clients) client->write_line();
  while (steady_clock::now() < moment) {
  }
}

}  // namespace

// What they have sent is read after their death.
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

// In good order: their transport is closed.
TEST(UcxArrival, ClientsLeave) {
  Server server;
  for (int round = 0; round < kRounds; ++round) {
    auto clients = clients_of(server);
    let_in(clients, round);
    for (const auto& client : clients) EXPECT_EQ(client->end_input(), 0);
    ASSERT_TRUE(server.answers()) << "round " << round;
  }
}

// The other side of it: a server that ends takes no client with it.
TEST(UcxArrival, TheServerIsKilled) {
  for (int round = 0; round < kRounds / 4; ++round) {
    Server server;
    auto clients = clients_of(server);
    let_in(clients, round * 4);
    server.program().signal(SIGKILL);
    for (const auto& client : clients) EXPECT_EQ(client->end_input(), 0) << "round " << round;
  }
}

}  // namespace tributary::testing_support
