// Strangers at every port of a process: they learn nothing, block nobody, and break nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "comm/ucx/handshake_side.h"
#include "comm/ucx/ucx_transport.h"
#include "tests/comm/transport/answering.h"
#include "tests/comm/transport/sockets_of_process.h"
#include "tests/comm/transport/stranger.h"
#include "tests/comm/transport/transport_endpoint.h"
#include "tests/loopback_listener.h"

namespace tributary::testing_support {
namespace {

/// Answers every message with "here".
class Server : public AnsweringServer {
 public:
  explicit Server(const TransportConfig& config) : AnsweringServer(make_ucx_transport, config) {}
};

class Client : public AskingClient {
 public:
  explicit Client(const Server& server, const Introduction& who = {})
      : AskingClient(make_ucx_transport, server.address(), who) {}
};

/// A stranger who says what a client says, as far as that takes him: to the server's introduction
/// if he knows the secret.
class Impostor : public Stranger {
 public:
  explicit Impostor(const Server& server, const Secret& secret = {})
      : Stranger(server.address()), side_({.id = 1, .secret = secret}, contact()) {}
  /// Returns the bytes after the challenge, which the server has to send.
  [[nodiscard]] std::vector<std::byte> introduce() {
    say(side_.opening());
    const std::vector<std::byte> challenge = hear_message();
    if (challenge.empty()) return {};
    say(side_.take(challenge).reply);
    return hear_message();
  }
  [[nodiscard]] std::vector<std::byte> hear_message() const {
    std::vector<std::byte> message;
    for (std::size_t wanted = ucx::message_bytes(message); message.size() < wanted;
         wanted = ucx::message_bytes(message)) {
      const std::vector<std::byte> more = hear(wanted - message.size());
      if (more.empty()) return {};
      message.insert(message.end(), more.begin(), more.end());
    }
    return message;
  }
  [[nodiscard]] std::vector<std::byte> opening() const { return side_.opening(); }

 private:
  static ucx::Contact contact() { return {.label = 7, .address = test_bytes(100, 1)}; }
  ucx::HandshakeSide side_;
};

std::vector<std::byte> refusal(ErrorCode reason) {
  return ucx::encode(ucx::Refusal{.reason = reason});
}

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
  const std::vector<std::byte> good = Impostor(server).opening();
  std::vector<std::vector<std::byte>> wrong = {
      to_bytes("G"), to_bytes("TRIBUCX2"), refusal(ErrorCode::kPoolFull),
      ucx::encode(
          ucx::Introduction{.contact = {.label = 7, .address = test_bytes(100, 1)}, .mac = {}})};
  for (const std::size_t at : {8U, 10U, 12U, 16U, 20U, 59U}) {  // a byte of every field
    wrong.push_back(good);
    wrong.back()[at] ^= std::byte{4};
  }
  for (const std::vector<std::byte>& what : wrong) {
    const Stranger stranger(server.address());
    stranger.say(what);
    EXPECT_EQ(stranger.hear(), 0);
  }
  // A side that introduces itself is answered, and may not send anything else here.
  Impostor impostor(server);
  EXPECT_TRUE(std::holds_alternative<ucx::Introduction>(ucx::decode(impostor.introduce())));
  impostor.say(to_bytes("x"));
  EXPECT_EQ(impostor.hear(), 0);
  Client(server).expect_answer();
}

TEST(UcxStrangers, NoProofNoEntry) {
  const Server server({.listen = "127.0.0.1:0", .max_connections = 2, .secret_of = [](auto id) {
                         return id == 1 ? std::optional(Secret{42}) : std::nullopt;
                       }});
  Client client(server, {.id = 1, .secret = {42}});
  client.expect_answer();
  for (int i = 0; i < 10; ++i) {  // none of them takes a place
    Impostor impostor(server, {41});
    EXPECT_EQ(impostor.introduce(), refusal(ErrorCode::kPermissionDenied));
    EXPECT_EQ(impostor.hear(), 0);
  }
  Client(server, {.id = 1, .secret = {42}}).expect_answer();
  client.expect_answer();
}

TEST(UcxStrangers, TheSilentAreSentAway) {
  const Server server({.listen = "127.0.0.1:0", .connect_timeout = std::chrono::milliseconds(200)});
  const std::vector<std::byte> good = Impostor(server).opening();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, std::size_t{24}}) {
    const Stranger stranger(server.address());
    stranger.say(std::span(good).first(bytes));
    EXPECT_EQ(stranger.hear(), 0);
  }
  // Answered, unless what it says came too late; but it never says hello.
  Impostor impostor(server);
  static_cast<void>(impostor.introduce());
  EXPECT_EQ(impostor.hear(), 0);
}

TEST(UcxStrangers, ManySilentOnesBlockNobody) {
  const Server server({.listen = "127.0.0.1:0",
                       .max_connections = 2,
                       .max_strangers = 8 * 16,
                       .connect_timeout = std::chrono::minutes(1)});
  std::vector<Stranger> strangers;
  for (int i = 0; i < 100; ++i) strangers.emplace_back(server.address());
  Client(server).expect_answer();
  // The oldest had to go, and was told why.
  EXPECT_EQ(strangers.front().hear(), refusal(ErrorCode::kPoolFull).size());
}

TEST(UcxStrangers, TheOldestThatSaysNoMoreThanWhoItIsMakesRoom) {
  const Server server(
      {.listen = "127.0.0.1:0", .max_connections = 4, .connect_timeout = std::chrono::minutes(1)});
  Client first(server);
  first.expect_answer();
  std::vector<Impostor> impostors;
  for (int i = 0; i < 100; ++i) {
    impostors.emplace_back(server);
    EXPECT_FALSE(impostors.back().introduce().empty()) << "it has a place";
  }
  Client(server).expect_answer();
  first.expect_answer();
  EXPECT_EQ(impostors[0].hear_message(), refusal(ErrorCode::kPoolFull)) << "it was told why";
  EXPECT_EQ(impostors[0].hear(), 0);
}

TEST(UcxStrangers, AServerOfAnotherKindIsNamed) {
  const test::LoopbackListener listener;
  for (const bool speaks : {true, false}) {
    Endpoint client(make_ucx_transport, {});
    const PeerId peer = client.transport().connect(listener.address());
    {
      const Stranger server(listener.accept());
      if (speaks) server.say(to_bytes("HTTP/1.1 400 Bad Request\r\n\r\n"));
      if (speaks) static_cast<void>(server.hear());
    }
    EXPECT_EQ(client.wait_disconnect(peer).code(),
              speaks ? ErrorCode::kMalformedInput : ErrorCode::kUnavailable);
  }
}

}  // namespace tributary::testing_support
