// The cases of the conformance suite about the ends of connections and the limits.
#include <algorithm>
#include <chrono>
#include <future>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "tests/comm/transport/transport_conformance.h"

namespace tributary::testing_support {
namespace {

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

/// Connects with the proof of an id, and sends a message.
PeerId speak_as(Endpoint& client, Endpoint& server, std::uint64_t id) {
  const PeerId peer = client.transport().connect(server.address(), {.id = id, .secret = {}});
  client.send(peer, 1, "");
  return peer;
}

}  // namespace

TEST_P(TransportConformance, SendToNobodyIsNotFound) {
  Endpoint client(make_, connecting());
  Completion sent;
  client.send(12345, 1, "", {}, sent.callback());
  EXPECT_EQ(sent.wait().code(), ErrorCode::kNotFound);
  EXPECT_EQ(sent.calls(), 1);
}

TEST_P(TransportConformance, ConnectToNobodyFails) {
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(GetParam().nobody);
  Completion header_only;
  Completion bulk;
  const std::vector<std::byte> payload = test_bytes(kMebibyte, 6);
  client.send(peer, 1, "", {}, header_only.callback());
  client.send(peer, 1, "", payload, bulk.callback());
  const Status reason = client.wait_disconnect(peer);
  EXPECT_TRUE(reason.code() == ErrorCode::kUnavailable ||
              reason.code() == ErrorCode::kDeadlineExceeded)
      << reason.message();
  EXPECT_FALSE(bulk.wait().ok());
  EXPECT_EQ(bulk.calls(), 1);
  EXPECT_EQ(header_only.calls(), 1);
  Completion late;
  client.send(peer, 1, "", {}, late.callback());
  EXPECT_EQ(late.wait().code(), ErrorCode::kNotFound);
}

TEST_P(TransportConformance, OnlyWhoKnowsTheSecretIsAccepted) {
  TransportConfig config = listening();
  config.secret_of = [](std::uint64_t id) {
    return id == 7 ? std::optional(Secret{1, 2, 3}) : std::nullopt;
  };
  EchoServer server(make_, config, {.id = 7, .secret = {1, 2, 3}});
  Endpoint client(make_, connecting());
  const std::string& address = server.endpoint().address();
  const PeerId right = client.transport().connect(address, {.id = 7, .secret = {1, 2, 3}});
  client.send(right, 5, "");
  EXPECT_EQ(client.receive().type, 5);
  for (const Introduction& wrong : {Introduction{.id = 7, .secret = {1, 2, 4}},
                                    Introduction{.id = 8, .secret = {1, 2, 3}}, Introduction{}}) {
    const PeerId peer = client.transport().connect(address, wrong);
    client.send(peer, 6, "");
    EXPECT_EQ(client.wait_disconnect(peer).code(), ErrorCode::kPermissionDenied);
  }
  // The server has heard nothing of them.
  client.send(right, 7, "");
  EXPECT_EQ(client.receive().type, 7);
  EXPECT_EQ(server.endpoint().disconnects(), 0);
}

TEST_P(TransportConformance, TheClientDisconnects) {
  EchoServer server(make_, listening());
  Endpoint client(make_, connecting());
  Endpoint other(make_, connecting());
  const PeerId peer = client.transport().connect(server.endpoint().address());
  const PeerId others = other.transport().connect(server.endpoint().address());
  client.send(peer, 1, "");
  EXPECT_EQ(client.receive().type, 1);
  client.transport().disconnect(peer);
  EXPECT_TRUE(server.endpoint().wait_disconnects(1));
  Completion late;
  client.send(peer, 1, "", {}, late.callback());
  EXPECT_EQ(late.wait().code(), ErrorCode::kNotFound);
  EXPECT_EQ(client.disconnects(), 0);
  // A second call does no harm, and no other connection notices.
  client.transport().disconnect(peer);
  other.send(others, 2, "");
  EXPECT_EQ(other.receive().type, 2);
  EXPECT_EQ(other.disconnects(), 0);
}

TEST_P(TransportConformance, TheServerDisconnects) {
  Endpoint server(make_, listening(),
                  [](Endpoint& self, PeerId peer, std::uint16_t type,
                     std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
                    if (type == 9) self.transport().disconnect(peer);
                    return false;
                  });
  Endpoint client(make_, connecting());
  const PeerId peer = client.transport().connect(server.address());
  client.send(peer, 9, "");
  EXPECT_EQ(client.wait_disconnect(peer).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(server.receive().type, 9);
  EXPECT_EQ(server.disconnects(), 0);
  // A new connection is another peer.
  const PeerId again = client.transport().connect(server.address());
  EXPECT_NE(again, peer);
  client.send(again, 1, "");
  EXPECT_EQ(server.receive().type, 1);
}

TEST_P(TransportConformance, MessagesBeforeADisconnectArrive) {
  constexpr int kMessages = 100;
  for (int round = 0; round < 5; ++round) {
    Endpoint server(make_, listening());
    Endpoint client(make_, connecting());
    const PeerId peer = client.transport().connect(server.address());
    client.send(peer, 0, "");
    EXPECT_EQ(server.receive().type, 0);  // it is connected
    for (std::uint16_t i = 1; i <= kMessages; ++i) client.send(peer, i, "");
    client.transport().disconnect(peer);
    ASSERT_TRUE(server.wait_disconnects(1));
    for (std::uint16_t i = 1; i <= kMessages; ++i) EXPECT_EQ(server.receive().type, i);
  }
}

TEST_P(TransportConformance, ConnectionsOfOneClientEndOneByOne) {
  constexpr int kConnections = 8;
  EchoServer server(make_, listening());
  Endpoint client(make_, connecting());
  std::vector<PeerId> peers;
  const auto expect_echo = [&](PeerId peer) {
    client.send(peer, 5, std::to_string(peer));
    const Received echo = client.receive();
    EXPECT_EQ(echo.peer, peer);
    EXPECT_EQ(echo.header, to_bytes(std::to_string(peer)));
  };
  for (int i = 0; i < kConnections; ++i) {
    peers.push_back(client.transport().connect(server.endpoint().address()));
  }
  for (const PeerId peer : peers) expect_echo(peer);
  // Every other one, then new ones, then the rest.
  for (std::size_t i = 0; i < peers.size(); i += 2) client.transport().disconnect(peers[i]);
  EXPECT_TRUE(server.endpoint().wait_disconnects(kConnections / 2));
  for (std::size_t i = 1; i < peers.size(); i += 2) expect_echo(peers[i]);
  for (std::size_t i = 0; i < peers.size(); i += 2) {
    peers[i] = client.transport().connect(server.endpoint().address());
  }
  for (const PeerId peer : peers) expect_echo(peer);
  for (const PeerId peer : peers) client.transport().disconnect(peer);
  EXPECT_TRUE(server.endpoint().wait_disconnects(kConnections + kConnections / 2));
  expect_echo(client.transport().connect(server.endpoint().address()));
  EXPECT_EQ(client.disconnects(), 0);
}

TEST_P(TransportConformance, TwoSidesConnectToEachOther) {
  const std::vector<std::byte> payload = test_bytes(kMebibyte, 11);
  for (int round = 0; round < 5; ++round) {
    Endpoint left(make_, listening());
    Endpoint right(make_, listening());
    const PeerId to_right = left.transport().connect(right.address());
    const PeerId to_left = right.transport().connect(left.address());
    for (const std::uint16_t type : {1, 2}) {
      left.send(to_right, type, "from the left", payload);
      right.send(to_left, type, "from the right", payload);
    }
    for (int i = 0; i < 2; ++i) {
      for (Endpoint* side : {&left, &right}) {
        const Received message = side->receive();
        EXPECT_EQ(message.header, to_bytes(side == &left ? "from the right" : "from the left"));
        EXPECT_TRUE(message.payload == payload);
      }
    }
    left.transport().disconnect(to_right);
    EXPECT_TRUE(right.wait_disconnects(1));
    right.send(to_left, 3, "still there");
    EXPECT_EQ(left.receive().type, 3);
    EXPECT_EQ(left.disconnects(), 0);
  }
}

TEST_P(TransportConformance, DestructionWithMessagesInFlight) {
  const std::vector<std::byte> payload = test_bytes(8 * kMebibyte, 7);
  for (const bool client_first : {true, false}) {
    constexpr int kMessages = 10;
    auto server = std::make_unique<Endpoint>(make_, listening());
    auto client = std::make_unique<Endpoint>(make_, connecting());
    const PeerId peer = client->transport().connect(server->address());
    std::vector<Completion> sent(kMessages);
    for (Completion& completion : sent) {
      client->send(peer, 1, "", payload, completion.callback());
    }
    EXPECT_TRUE(server->wait_for_messages(1));
    if (client_first) {
      client.reset();  // checks that no `done` is missing
      for (const Completion& completion : sent) EXPECT_EQ(completion.calls(), 1);
      EXPECT_TRUE(server->wait_disconnects(1));
      server.reset();
    } else {
      server.reset();
      EXPECT_FALSE(client->wait_disconnect(peer).ok());
      for (const Completion& completion : sent) EXPECT_EQ(completion.calls(), 1);
      client.reset();
    }
  }
}

TEST_P(TransportConformance, DestructionRightAfterConnect) {
  Endpoint server(make_, listening());
  for (int i = 0; i < 20; ++i) {
    Completion sent;
    {
      Endpoint client(make_, connecting());
      const PeerId peer = client.transport().connect(server.address());
      client.send(peer, 1, "", {}, sent.callback());
      if (i % 2 == 0) client.transport().disconnect(peer);
    }
    EXPECT_EQ(sent.calls(), 1);
  }
}

/// The transport's own thread connects, another one disconnects before the first goes on.
TEST_P(TransportConformance, AnotherThreadDisconnectsWhatTheTransportsOwnConnects) {
  Endpoint target(make_, listening());
  const auto connects = [&](Endpoint& server, PeerId /*peer*/, std::uint16_t /*type*/,
                            std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
    const PeerId made = server.transport().connect(target.address());
    std::thread([&] { server.transport().disconnect(made); }).join();
    return false;
  };
  Endpoint server(make_, listening(), connects);
  Endpoint client(make_, connecting());
  client.send(client.transport().connect(server.address()), 1, "");
  EXPECT_EQ(server.receive().type, 1);
  // Later than that.
  server.send(server.transport().connect(target.address()), 2, "");
  EXPECT_EQ(target.receive().type, 2);
  const auto limit = std::chrono::steady_clock::now() + kAmple;
  const auto one_is_left = [&] { return target.opens() == target.disconnects() + 1; };
  while (!one_is_left() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(one_is_left());
}

TEST_P(TransportConformance, OwnLimitsRefuseAMessage) {
  TransportConfig config = connecting();
  config.max_header_bytes = 100;
  config.max_payload_bytes = 1000;
  Endpoint server(make_, listening());
  Endpoint client(make_, config);
  const PeerId peer = client.transport().connect(server.address());
  const std::vector<std::byte> payload = test_bytes(1001, 8);
  Completion long_header;
  Completion long_payload;
  client.send(peer, 1, std::string(101, 'x'), {}, long_header.callback());
  client.send(peer, 1, "", payload, long_payload.callback());
  client.send(peer, 2, "");
  EXPECT_EQ(long_header.wait().code(), ErrorCode::kTooLarge);
  EXPECT_EQ(long_payload.wait().code(), ErrorCode::kTooLarge);
  EXPECT_EQ(server.receive().type, 2);
}

TEST_P(TransportConformance, OversizeMessagesEndTheirSender) {
  TransportConfig config = listening();
  config.max_header_bytes = 100;
  config.max_payload_bytes = 1000;
  Endpoint server(make_, config);
  Endpoint good(make_, connecting());
  const PeerId good_peer = good.transport().connect(server.address());
  good.send(good_peer, 1, "");
  EXPECT_EQ(server.receive().type, 1);
  std::size_t ended = 0;
  for (const std::size_t payload_bytes : {std::size_t{0}, std::size_t{1001}, 4 * kMebibyte}) {
    Endpoint bad(make_, connecting());
    const PeerId peer = bad.transport().connect(server.address());
    bad.send(peer, 1, "");
    EXPECT_EQ(server.receive().type, 1);
    const std::vector<std::byte> payload = test_bytes(payload_bytes, 9);
    Completion sent;
    bad.send(peer, 2, std::string(payload_bytes == 0 ? 101 : 1, 'x'), payload, sent.callback());
    EXPECT_FALSE(bad.wait_disconnect(peer).ok());
    EXPECT_EQ(sent.calls(), 1);
    EXPECT_TRUE(server.wait_disconnects(++ended));
  }
  good.send(good_peer, 3, "");
  EXPECT_EQ(server.receive().type, 3);
  EXPECT_EQ(good.disconnects(), 0);
}

TEST_P(TransportConformance, AcceptsNoMoreThanItsLimit) {
  TransportConfig config = listening();
  config.max_connections = 2;
  Endpoint server(make_, config);
  Endpoint client(make_, connecting());
  std::vector<PeerId> peers;
  for (int i = 0; i < 2; ++i) {
    peers.push_back(client.transport().connect(server.address()));
    client.send(peers.back(), 1, "");
    EXPECT_EQ(server.receive().type, 1);
  }
  const PeerId refused = client.transport().connect(server.address());
  EXPECT_EQ(client.wait_disconnect(refused).code(), ErrorCode::kPoolFull);
  // A freed place can be taken again.
  client.transport().disconnect(peers[0]);
  ASSERT_TRUE(server.wait_disconnects(1));
  const PeerId later = client.transport().connect(server.address());
  client.send(later, 2, "");
  EXPECT_EQ(server.receive().type, 2);
  client.send(peers[1], 3, "");
  EXPECT_EQ(server.receive().type, 3);
}

TEST_P(TransportConformance, BothEndsKnowWhoWasProven) {
  TransportConfig config = listening();
  config.secret_of = [](std::uint64_t id) { return Secret{static_cast<std::uint8_t>(id)}; };
  Endpoint server(make_, config);
  Endpoint client(make_, connecting());
  std::set<Session> sessions;
  for (const std::uint64_t id : {7U, 7U, 8U}) {
    const PeerId peer = client.transport().connect(
        server.address(), {.id = id, .secret = {static_cast<std::uint8_t>(id)}});
    client.send(peer, 1, "");
    const Proven theirs = server.wait_open(server.receive().peer);
    const Proven ours = client.wait_open(peer);
    EXPECT_EQ(theirs.id, id);
    EXPECT_EQ(ours.id, id);
    EXPECT_EQ(ours.session, theirs.session);
    EXPECT_TRUE(sessions.insert(ours.session).second);
  }
}

TEST_P(TransportConformance, TheAcceptingSideMaySpeakFirst) {
  constexpr std::uint16_t kSmall = 20;
  const std::vector<std::byte> payload = test_bytes(300'000, 9);
  Endpoint server(make_, listening());
  Endpoint client(make_, connecting());
  for (PeerId id = 1; id <= 10; ++id) {  // a transport's ids count up
    static_cast<void>(client.transport().connect(server.address()));
    static_cast<void>(server.wait_open(id));
    Completion sent;
    server.send(id, kSmall, "", payload, sent.callback());
    for (std::uint16_t type = 0; type < kSmall; ++type) {
      server.send(id, type, "", {}, sent.callback());
    }
    std::vector<std::uint16_t> types;
    for (int i = 0; i <= kSmall; ++i) {
      const Received message = client.receive();
      ASSERT_TRUE(message.status.ok()) << message.status.message();
      if (message.type < kSmall) types.push_back(message.type);
      EXPECT_TRUE(message.payload == (message.type < kSmall ? std::vector<std::byte>() : payload));
    }
    EXPECT_EQ(types.size(), kSmall);
    EXPECT_TRUE(std::ranges::is_sorted(types));
    EXPECT_TRUE(sent.wait_all_ok(kSmall + 1));
  }
}

TEST_P(TransportConformance, TheOldestSilentOneMakesRoom) {
  TransportConfig config = listening();
  config.max_connections = 2;
  Endpoint server(make_, config);
  Endpoint client(make_, connecting());
  const PeerId loud = client.transport().connect(server.address());
  client.send(loud, 1, "");
  EXPECT_EQ(server.receive().type, 1);
  const PeerId silent = client.transport().connect(server.address());
  static_cast<void>(client.wait_open(silent));
  const PeerId next = client.transport().connect(server.address());
  client.send(next, 2, "");
  EXPECT_EQ(server.receive().type, 2);
  EXPECT_FALSE(client.wait_disconnect(silent).ok());
  client.send(loud, 3, "");
  EXPECT_EQ(server.receive().type, 3);
}

TEST_P(TransportConformance, OneIdTakesNoMoreThanItsShare) {
  TransportConfig config = listening();
  config.max_connections_of_id = 2;
  config.secret_of = [](std::uint64_t) { return Secret{}; };
  Endpoint server(make_, config);
  Endpoint client(make_, connecting());
  for (int i = 0; i < 2; ++i) {
    static_cast<void>(speak_as(client, server, 7));
    EXPECT_EQ(server.receive().type, 1);
  }
  EXPECT_EQ(client.wait_disconnect(speak_as(client, server, 7)).code(), ErrorCode::kPoolFull);
  for (const std::uint64_t id : {8U, 0U, 0U, 0U}) {
    static_cast<void>(speak_as(client, server, id));
    EXPECT_EQ(server.receive().type, 1);
  }
}

TEST_P(TransportConformance, WhoHasTheMostGivesOneUp) {
  TransportConfig config = listening();
  config.max_connections = 3;
  config.secret_of = [](std::uint64_t) { return Secret{}; };
  Endpoint server(make_, config);
  Endpoint client(make_, connecting());
  std::vector<PeerId> greedy;
  for (int i = 0; i < 3; ++i) {
    greedy.push_back(speak_as(client, server, 7));
    EXPECT_EQ(server.receive().type, 1);
  }
  const PeerId newcomer = speak_as(client, server, 8);
  EXPECT_EQ(server.receive().type, 1);
  EXPECT_FALSE(client.wait_disconnect(greedy[0]).ok());
  EXPECT_EQ(client.wait_disconnect(speak_as(client, server, 7)).code(), ErrorCode::kPoolFull);
  for (const PeerId peer : {greedy[1], greedy[2], newcomer}) {
    client.send(peer, 2, "");
    EXPECT_EQ(server.receive().type, 2);
  }
}

// A handler must not block. One that does looks like a peer that does not read.
TEST_P(TransportConformance, APeerThatDoesNotReadIsCutOff) {
  const std::vector<std::byte> payload = test_bytes(8 * kMebibyte, 10);
  for (const bool by_bytes : {true, false}) {
    std::promise<void> is_blocked;
    std::promise<void> go_on;
    Endpoint server(make_, listening(),
                    [&](Endpoint& /*self*/, PeerId /*peer*/, std::uint16_t type,
                        std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
                      if (type == 9) {
                        is_blocked.set_value();
                        go_on.get_future().wait_for(kAmple);
                      }
                      return false;
                    });
    TransportConfig config = connecting();
    if (by_bytes) {
      config.max_outgoing_bytes = 32 * kMebibyte;
    } else {
      config.send_timeout = std::chrono::seconds(2);  // the first message is within it
    }
    Endpoint client(make_, config);
    const PeerId peer = client.transport().connect(server.address());
    client.send(peer, 9, "");
    ASSERT_EQ(is_blocked.get_future().wait_for(kAmple), std::future_status::ready);
    std::vector<Completion> sent(by_bytes ? 6 : 2);
    for (Completion& completion : sent) client.send(peer, 1, "", payload, completion.callback());
    EXPECT_EQ(client.wait_disconnect(peer).code(), ErrorCode::kDeadlineExceeded);
    for (const Completion& completion : sent) {
      EXPECT_FALSE(completion.wait().ok());
      EXPECT_EQ(completion.calls(), 1);
    }
    go_on.set_value();
  }
}

}  // namespace tributary::testing_support
