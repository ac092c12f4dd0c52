// The cases of the conformance suite about messages.
#include "tests/comm/transport/transport_conformance.h"

#include <array>
#include <atomic>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

namespace tributary::testing_support {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Around the limits of transports' protocols, and odd ones.
constexpr std::array<std::size_t, 14> kSizes = {
    1,      7,      8191,    8192, 8193,          65537,        150000,
    262143, 262145, 1000001, kMiB, 3 * kMiB + 17, 8 * kMiB - 1, 8 * kMiB};

}  // namespace

TEST_P(TransportConformance, KnowsItsAddress) {
  const Endpoint server(make_, listening());
  const Endpoint client(make_, connecting());
  EXPECT_FALSE(server.address().empty());
  EXPECT_FALSE(server.address().ends_with(":0"));
  EXPECT_TRUE(client.address().empty());
}

TEST_P(TransportConformance, WrongAddressesAreNamed) {
  Endpoint client(make_, connecting());
  for (const std::string wrong : {"", "nothing", "127.0.0.1:", "127.0.0.1:65536", ":1"}) {
    SCOPED_TRACE(wrong);
    try {
      static_cast<void>(client.transport().connect(wrong));
      ADD_FAILURE() << "connected";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("'" + wrong + "'"), std::string::npos);
    }
    if (wrong.empty()) continue;
    EXPECT_THROW(Endpoint(make_, {.listen = wrong}), Error);
  }
}

TEST_P(TransportConformance, AnAddressIsTakenOnce) {
  const Endpoint server(make_, listening());
  EXPECT_THROW(Endpoint(make_, {.listen = server.address()}), Error);
}

TEST_P(TransportConformance, EchoesAllSizes) {
  EchoServer server(make_, listening());
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.endpoint().address());
  for (const std::size_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    const std::vector<std::byte> payload = test_bytes(bytes, bytes);
    Completion sent;
    client.send(peer, 7, "header " + std::to_string(bytes), payload, sent.callback());
    const Received echo = client.receive();
    EXPECT_EQ(echo.peer, peer);
    EXPECT_EQ(echo.type, 7);
    EXPECT_EQ(echo.header, to_bytes("header " + std::to_string(bytes)));
    EXPECT_TRUE(echo.status.ok()) << echo.status.message();
    EXPECT_TRUE(echo.payload == payload);
    EXPECT_TRUE(sent.wait().ok());
    EXPECT_EQ(sent.calls(), 1);
  }
}

TEST_P(TransportConformance, EchoesHeadersUpToTheLimit) {
  EchoServer server(make_, listening());
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.endpoint().address());
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4096}}) {
    for (const std::size_t payload_bytes : {std::size_t{0}, std::size_t{5}, kMiB}) {
      const std::vector<std::byte> header = test_bytes(bytes, bytes);
      const std::vector<std::byte> payload = test_bytes(payload_bytes, bytes);
      Completion sent;
      client.transport().send(
          peer, {.type = 65535, .header = header, .payload = {payload}, .sent = sent.callback()});
      const Received echo = client.receive();
      EXPECT_EQ(echo.type, 65535);
      EXPECT_EQ(echo.header, header);
      EXPECT_EQ(echo.payload, payload);
      EXPECT_TRUE(sent.wait().ok());
    }
  }
}

TEST_P(TransportConformance, WhoWaitsForAMessageMayDoTheWork) {
  std::atomic<int> seen = 0;
  Endpoint server(
      make_, listening(),
      [&](Endpoint& self, PeerId, std::uint16_t, std::span<const std::byte>, std::size_t) {
        ++seen;
        self.transport().wake();
        return false;
      });
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.address());
  const std::vector<std::byte> payload = test_bytes(kMiB, 1);
  for (int i = 1; i <= 3; ++i) {
    client.send(peer, 1, "", payload);
    const Time late = std::chrono::steady_clock::now() + kAmple;
    if (server.transport().work_until(late, [&] { return seen == i; })) {
      EXPECT_EQ(seen, i);
    }
    EXPECT_TRUE(server.receive().payload == payload);  // others do the rest
  }
}

TEST_P(TransportConformance, LandsInPiecesWithGaps) {
  Endpoint server(make_, listening());
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.address());
  for (const std::size_t piece_bytes : {std::size_t{1009}, std::size_t{65536}, kMiB - 1}) {
    server.set_piece_bytes(piece_bytes);
    for (const std::size_t bytes : kSizes) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes in pieces of " << piece_bytes);
      const std::vector<std::byte> payload = test_bytes(bytes, piece_bytes);
      Completion sent;
      client.send(peer, 1, "", payload, sent.callback());
      const Received message = server.receive();
      EXPECT_TRUE(message.status.ok()) << message.status.message();
      EXPECT_TRUE(message.payload == payload);
      EXPECT_TRUE(message.inspected == payload);  // each byte once, in order
      EXPECT_TRUE(sent.wait().ok());
    }
  }
  EXPECT_EQ(server.landings_touched_in_gaps(), 0);
}

TEST_P(TransportConformance, SendsPiecesAsOnePayload) {
  constexpr std::size_t kGap = 13;
  Endpoint server(make_, listening());
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.address());
  for (const std::size_t piece_bytes : {std::size_t{7}, std::size_t{1009}, std::size_t{65536}}) {
    server.set_piece_bytes(piece_bytes == 1009 ? 4096 : 0);
    for (const std::size_t bytes : kSizes) {
      if (bytes / piece_bytes > 2000) continue;
      SCOPED_TRACE(testing::Message() << bytes << " bytes in pieces of " << piece_bytes);
      const std::vector<std::byte> payload = test_bytes(bytes, piece_bytes);
      std::vector<std::byte> memory(bytes + (bytes / piece_bytes + 1) * kGap);
      std::vector<std::span<const std::byte>> pieces(1);  // an empty one
      for (std::size_t at = 0; at < bytes; at += piece_bytes) {
        const std::size_t piece = std::min(piece_bytes, bytes - at);
        std::byte* place = memory.data() + at + at / piece_bytes * kGap;
        std::copy_n(payload.data() + at, piece, place);
        pieces.emplace_back(place, piece);
      }
      Completion sent;
      client.transport().send(
          peer, {.type = 1, .header = {}, .payload = pieces, .sent = sent.callback()});
      const Received message = server.receive();
      EXPECT_TRUE(message.status.ok()) << message.status.message();
      EXPECT_TRUE(message.payload == payload);
      EXPECT_TRUE(message.inspected == payload);
      EXPECT_TRUE(sent.wait().ok());
    }
  }
}

TEST_P(TransportConformance, DropsPayloadsAndGoesOn) {
  Endpoint server(make_, listening());
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.address());
  for (const std::size_t bytes : kSizes) {
    SCOPED_TRACE(bytes);
    const std::vector<std::byte> payload = test_bytes(bytes, bytes);
    for (const bool drop : {true, false}) {
      server.set_drop(drop);
      Completion sent;
      client.send(peer, 1, "", payload, sent.callback());
      const Received message = server.receive();
      EXPECT_EQ(message.payload.size(), drop ? 0 : bytes);
      EXPECT_TRUE(sent.wait().ok()) << sent.wait().message();
    }
  }
}

TEST_P(TransportConformance, HeaderOnlyMessagesKeepTheirOrder) {
  constexpr int kMessages = 20000;
  Endpoint server(make_, listening());
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.address());
  // Messages of all lengths, sent before the connection exists; some have a payload and may arrive
  // late.
  const std::vector<std::byte> payload = test_bytes(300000, 1);
  for (int i = 0; i < kMessages; ++i) {
    const std::string padding(static_cast<std::size_t>(i % 50 == 0 ? 3000 : i % 97), 'x');
    client.send(peer, 1, std::to_string(i) + padding);
    if (i % 1000 == 0) client.send(peer, 2, "bulk", payload);
  }
  int expected = 0;
  for (int i = 0; i < kMessages + kMessages / 1000; ++i) {
    const Received message = server.receive();
    if (message.type == 2) {
      EXPECT_TRUE(message.payload == payload);
      continue;
    }
    const std::string text(reinterpret_cast<const char*>(message.header.data()),
                           message.header.size());
    ASSERT_EQ(std::stoi(text), expected++);
  }
}

TEST_P(TransportConformance, ServesManyPeers) {
  constexpr int kPeers = 40;
  EchoServer server(make_, listening());
  std::vector<std::unique_ptr<Endpoint>> clients;
  std::vector<PeerId> peers;
  const std::vector<std::byte> payload = test_bytes(200001, 3);
  for (int i = 0; i < kPeers; ++i) {
    clients.push_back(std::make_unique<Endpoint>(make_, connecting()));
    peers.push_back(clients.back()->transport().connect(server.endpoint().address()));
  }
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < clients.size(); ++i) {
      clients[i]->send(peers[i], 1, std::to_string(i));
      clients[i]->send(peers[i], 2, std::to_string(i), payload);
    }
    for (std::size_t i = 0; i < clients.size(); ++i) {
      for (int n = 0; n < 2; ++n) {
        const Received echo = clients[i]->receive();
        EXPECT_EQ(echo.header, to_bytes(std::to_string(i)));
        if (echo.type == 2) {
          EXPECT_TRUE(echo.payload == payload);
        }
      }
    }
  }
}

TEST_P(TransportConformance, OneClientHasManyConnections) {
  constexpr int kConnections = 20;
  EchoServer server(make_, listening());
  Endpoint client(make_, connecting());
  std::set<PeerId> peers;
  for (int i = 0; i < kConnections; ++i) {
    peers.insert(client.transport().connect(server.endpoint().address()));
  }
  EXPECT_EQ(peers.size(), kConnections);
  for (const PeerId peer : peers) client.send(peer, 1, std::to_string(peer));
  std::set<PeerId> seen;
  for (int i = 0; i < kConnections; ++i) {
    const Received echo = client.receive();
    EXPECT_EQ(echo.header, to_bytes(std::to_string(echo.peer)));
    seen.insert(echo.peer);
  }
  EXPECT_EQ(seen, peers);
}

TEST_P(TransportConformance, ThreadsSendAtTheSameTime) {
  constexpr int kThreads = 4;
  constexpr int kMessages = 500;
  Endpoint server(make_, listening());
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.address());
  const std::vector<std::byte> payload = test_bytes(20000, 4);
  Completion sent;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < kMessages; ++i) {
          client.send(
              peer, static_cast<std::uint16_t>(thread), std::to_string(i),
              i % 5 == 0 ? std::span<const std::byte>(payload) : std::span<const std::byte>(),
              sent.callback());
        }
      });
    }
  }
  ASSERT_TRUE(server.wait_for_messages(kThreads * kMessages));
  std::array<int, kThreads> last{};
  last.fill(-1);
  for (int i = 0; i < kThreads * kMessages; ++i) {
    const Received message = server.receive();
    const std::string text(reinterpret_cast<const char*>(message.header.data()),
                           message.header.size());
    if (!message.payload.empty()) {
      EXPECT_TRUE(message.payload == payload);
      continue;
    }
    EXPECT_GT(std::stoi(text), std::exchange(last.at(message.type), std::stoi(text)));
  }
  EXPECT_TRUE(sent.wait_all_ok(kThreads * kMessages));
}

/// A message that the transport's own thread sends, larger than the network takes at once, and one
/// of another thread before the first thread goes on.
TEST_P(TransportConformance, ThreadsSendBehindTheTransportsOwn) {
  const std::vector<std::byte> large = test_bytes(8 * kMiB, 1);
  const std::vector<std::byte> small = test_bytes(3000, 2);
  const auto answers = [&](Endpoint& server, PeerId peer, std::uint16_t /*type*/,
                           std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
    server.send(peer, 1, "", large);
    std::thread([&] { server.send(peer, 2, "", small); }).join();
    return true;
  };
  Endpoint server(make_, listening(), answers);
  Endpoint client(make_, connecting());
  client.send(client.transport().connect(server.address()), 0, "");
  for (int i = 0; i < 2; ++i) {
    const Received message = client.receive();
    EXPECT_TRUE(message.status.ok()) << message.status.message();
    EXPECT_TRUE(message.payload == (message.type == 1 ? large : small)) << message.type;
  }
}

TEST_P(TransportConformance, BothSidesSendOnOneConnection) {
  constexpr int kMessages = 30;
  const std::vector<std::byte> payload = test_bytes(700001, 5);
  // The server sends as many as it gets, without waiting.
  Endpoint server(make_, listening(),
                  [&](Endpoint& self, PeerId peer, std::uint16_t type,
                      std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
                    self.send(peer, type, "from the server", payload);
                    return false;
                  });
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.address());
  for (int i = 0; i < kMessages; ++i) client.send(peer, 1, "from the client", payload);
  for (int i = 0; i < kMessages; ++i) {
    for (Endpoint* side : {&client, &server}) {
      const Received message = side->receive();
      EXPECT_TRUE(message.status.ok()) << message.status.message();
      EXPECT_TRUE(message.payload == payload);
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TransportConformance);

}  // namespace tributary::testing_support
