// Strangers at every port of a process: they learn nothing, block nobody, and break nothing.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "comm/ucx/ucx_address.h"
#include "comm/ucx/ucx_handshake.h"
#include "comm/ucx/ucx_transport.h"
#include "tests/comm/transport/answering.h"
#include "tests/comm/transport/sockets_of_process.h"
#include "tests/comm/transport/stranger.h"
#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::testing_support {
namespace {

/// Answers every message with "here".
class Server : public AnsweringServer {
 public:
  explicit Server(const TransportConfig& config) : AnsweringServer(make_ucx_transport, config) {}
};

class Client : public AskingClient {
 public:
  explicit Client(const Server& server) : AskingClient(make_ucx_transport, server.address()) {}
};

}  // namespace

TEST(UcxStrangers, NothingListensBeyondTheLoopback) {
  ASSERT_TRUE(listening_addresses().empty());
  const Server server({.listen = "127.0.0.1:0"});
  const std::vector<std::string> addresses = listening_addresses();
  EXPECT_NE(std::ranges::find(addresses, server.address()), addresses.end());
  for (const std::string& address : addresses)
    EXPECT_TRUE(address.starts_with("127.0.0.1:")) << address;
}

TEST(UcxStrangers, GarbageOnEveryPortHarmsNobody) {
  Server server({.listen = "127.0.0.1:0"});
  Client client(server);
  client.expect_answer();
  const std::vector<std::string> addresses = listening_addresses();
  EXPECT_GE(addresses.size(), 2);  // the front door, and UCX's own
  std::vector<Stranger> open;
  for (const std::size_t bytes : {1, 7, 8, 24, 100, 1000, 100'000, 1'000'000}) {
    for (const std::string& address : addresses) {
      SCOPED_TRACE(fmt::format("{} bytes at {}", bytes, address));
      for (const std::vector<std::byte>& what : garbage(bytes)) {
        Stranger stranger(address);
        stranger.say(what);
        if (bytes % 3 == 1) open.push_back(std::move(stranger));
        client.expect_answer();
      }
    }
  }
  Client(server).expect_answer();
  open.clear();
  client.expect_answer();
  EXPECT_TRUE(server.wait_disconnects(1));  // of the later client, while others speak
  EXPECT_EQ(server.disconnects(), 1);
}

TEST(UcxStrangers, TheDoorIsShutToWhoeverSaysTheWrongThing) {
  const Server server({.listen = "127.0.0.1:0"});
  const std::vector<std::byte> good = ucx::encode({.label = 7, .address = test_bytes(100, 1)});
  std::vector<std::vector<std::byte>> wrong = {to_bytes("G"), to_bytes("TRIBUCX2")};
  for (const std::size_t at : {8U, 10U, 12U, 16U, 24U, 123U}) {  // a byte of every field
    wrong.push_back(good);
    wrong.back()[at] ^= std::byte{4};
    if (at == 10) wrong.back().resize(200);
  }
  for (const std::vector<std::byte>& what : wrong) {
    const Stranger stranger(server.address());
    stranger.say(what);
    EXPECT_EQ(stranger.hear(), 0);
  }
  // A side that introduces itself is answered, and may not send anything else here.
  const Stranger stranger(server.address());
  stranger.say(good);
  stranger.say(to_bytes("x"));
  EXPECT_GT(stranger.hear(), 0);
  Client(server).expect_answer();
}

TEST(UcxStrangers, TheSilentAreSentAway) {
  const auto serve = [](int timeout_ms) {
    return TransportConfig{.listen = "127.0.0.1:0",
                           .connect_timeout = std::chrono::milliseconds(timeout_ms)};
  };
  const std::vector<std::byte> good = ucx::encode({.label = 7, .address = test_bytes(100, 1)});
  {
    const Server server(serve(200));
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, std::size_t{24}}) {
      const Stranger stranger(server.address());
      stranger.say(std::span(good).first(bytes));
      EXPECT_EQ(stranger.hear(), 0);
    }
  }
  // Answered, but it never says hello. On a machine that stalls what it says may come too late.
  std::size_t heard = 0;
  for (const int timeout_ms : {200, 2'000, 10'000}) {
    const Server server(serve(timeout_ms));
    const Stranger stranger(server.address());
    stranger.say(good);
    heard = stranger.hear();
    if (heard > 0) break;
  }
  EXPECT_GT(heard, 0);
}

TEST(UcxStrangers, ManySilentOnesBlockNobody) {
  const Server server(
      {.listen = "127.0.0.1:0", .max_connections = 2, .connect_timeout = std::chrono::minutes(1)});
  std::vector<Stranger> strangers;
  for (int i = 0; i < 300; ++i) strangers.emplace_back(server.address());
  Client(server).expect_answer();
  // The oldest had to go, and was told why.
  EXPECT_EQ(strangers.front().hear(), ucx::encode_refusal().size());
}

TEST(UcxStrangers, TheOldestThatSaysNoMoreThanWhoItIsMakesRoom) {
  const Server server(
      {.listen = "127.0.0.1:0", .max_connections = 4, .connect_timeout = std::chrono::minutes(1)});
  Client first(server);
  first.expect_answer();
  const std::vector<std::byte> good = ucx::encode({.label = 7, .address = test_bytes(100, 1)});
  std::vector<Stranger> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.emplace_back(server.address());
    strangers.back().say(good);
    EXPECT_EQ(strangers.back().hear(24).size(), 24) << "it has a place";
  }
  Client(server).expect_answer();
  first.expect_answer();
  std::vector<std::byte> heard;
  for (auto part = strangers[0].hear_some(); !part.empty(); part = strangers[0].hear_some()) {
    heard.insert(heard.end(), part.begin(), part.end());
  }
  const std::vector<std::byte> refusal = ucx::encode_refusal();
  ASSERT_GT(heard.size(), refusal.size());
  EXPECT_TRUE(std::equal(refusal.rbegin(), refusal.rend(), heard.rbegin())) << "it was told why";
}

TEST(UcxStrangers, AServerOfAnotherKindIsNamed) {
  const int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_storage address{};
  ucx::SocketAddress any = ucx::parse_address("127.0.0.1:0");
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listening, reinterpret_cast<const sockaddr*>(&any.storage), any.size), 0);
  ASSERT_EQ(listen(listening, 1), 0);
  ASSERT_EQ(getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size), 0);
  for (const bool speaks : {true, false}) {
    Endpoint client(make_ucx_transport, {});
    const PeerId peer = client.transport().connect(ucx::format_address(address));
    {
      const Stranger server(accept4(listening, nullptr, nullptr, SOCK_CLOEXEC));
      if (speaks) server.say(to_bytes("HTTP/1.1 400 Bad Request\r\n\r\n"));
      if (speaks) static_cast<void>(server.hear());
    }
    EXPECT_EQ(client.wait_disconnect(peer).code(),
              speaks ? ErrorCode::kMalformedInput : ErrorCode::kUnavailable);
  }
  close(listening);
}

}  // namespace tributary::testing_support
