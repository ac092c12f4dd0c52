// Strangers at the port of a TCP transport learn nothing, block nobody, and break nothing. A proof
// that is wrong, missing or old is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/tcp/frame_header.h"
#include "comm/tcp/preamble.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport/proof.h"
#include "comm/wire/codec.h"
#include "tests/comm/transport/answering.h"
#include "tests/comm/transport/relay.h"
#include "tests/comm/transport/sockets_of_process.h"
#include "tests/comm/transport/stranger.h"

namespace tributary::testing_support {
namespace {

using tcp::Preamble;

/// Every id but 0 has a secret of its own.
std::optional<Secret> secret_of(std::uint64_t id) {
  if (id == 0) return std::nullopt;
  return Secret{1, 2, 3, static_cast<std::uint8_t>(id)};
}

constexpr std::chrono::minutes kForever{1};

TransportConfig guarded(std::chrono::milliseconds connect_timeout = kForever) {
  return {.listen = "127.0.0.1:0", .connect_timeout = connect_timeout, .secret_of = secret_of};
}

AnsweringServer serve(const TransportConfig& config) {
  return {make_tcp_transport, config};
}

AskingClient client_of(const AnsweringServer& server, std::uint64_t id = 7) {
  return {make_tcp_transport, server.address(), {.id = id, .secret = *secret_of(id)}};
}

std::vector<std::byte> joined(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  std::vector<std::byte> all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

/// The first bytes of a client, before the challenge.
std::vector<std::byte> opening(std::uint64_t id) {
  return joined(wire::encode(Preamble{}), wire::encode(proof::Opening{.id = id, .nonce = {9}}));
}

proof::Challenge hear_challenge(const Stranger& stranger) {
  const auto heard = stranger.hear(Preamble::kBytes + proof::Challenge::kBytes);
  EXPECT_EQ(heard.size(), Preamble::kBytes + proof::Challenge::kBytes);
  return wire::decode<proof::Challenge>(std::span(heard).subspan(Preamble::kBytes));
}

proof::Verdict hear_verdict(const Stranger& stranger) {
  const auto heard = stranger.hear(proof::Verdict::kBytes);
  EXPECT_EQ(heard.size(), proof::Verdict::kBytes);
  return wire::decode<proof::Verdict>(heard);
}

/// With a right proof.
void introduce(const Stranger& stranger) {
  stranger.say(opening(1));
  const proof::Transcript said{.opening = {.id = 1, .nonce = {9}},
                               .challenge = hear_challenge(stranger)};
  stranger.say(wire::encode(proof::client_proof(*secret_of(1), said, wire::encode(Preamble{}))));
  EXPECT_EQ(hear_verdict(stranger).outcome, ErrorCode::kOk);
}

}  // namespace

TEST(TcpStrangers, ClientsListenNowhere) {
  ASSERT_TRUE(listening_addresses().empty());
  Endpoint client(make_tcp_transport, {});
  EXPECT_TRUE(listening_addresses().empty());
  const auto server = serve(guarded());
  EXPECT_EQ(listening_addresses(), std::vector<std::string>{server.address()});
  client_of(server).expect_answer();
  EXPECT_EQ(listening_addresses(), std::vector<std::string>{server.address()});
}

// A server that accepts everybody still does not know the secret: the client leaves it.
TEST(TcpStrangers, AServerThatDoesNotKnowTheSecretIsLeft) {
  Endpoint server(make_tcp_transport, {.listen = "127.0.0.1:0", .secret_of = [](std::uint64_t) {
                                         return std::optional(Secret{4});
                                       }});
  AskingClient client(make_tcp_transport, server.address(), {.id = 1, .secret = {5}});
  client.ask();
  EXPECT_EQ(client.wait_disconnect().code(), ErrorCode::kPermissionDenied);
  EXPECT_EQ(server.disconnects(), 0);

  Relay liar(server.address(), [](bool to_server, std::size_t at, std::vector<std::byte>& bytes) {
    constexpr std::size_t kVerdict = Preamble::kBytes + proof::Challenge::kBytes;
    // The relay sends "ok" in the server's place.
    if (!to_server && at == kVerdict) bytes = wire::encode(proof::Verdict{});
  });
  AskingClient deceived(make_tcp_transport, liar.address(), {.id = 1, .secret = {5}});
  deceived.ask();
  EXPECT_EQ(deceived.wait_disconnect().code(), ErrorCode::kPermissionDenied);
}

TEST(TcpStrangers, NoProofNoEntry) {
  auto server = serve(guarded());
  const auto frame = test_bytes(1000, 1);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, std::size_t{31}}) {
    const Stranger stranger(server.address());
    stranger.say(opening(1));
    static_cast<void>(hear_challenge(stranger));
    stranger.say(std::span(frame).first(bytes));
    stranger.end_saying();
    EXPECT_EQ(stranger.hear(), 0);
  }
  const Stranger wrong(server.address());
  wrong.say(opening(1));
  static_cast<void>(hear_challenge(wrong));
  wrong.say(frame);  // 32 bytes of it are the proof
  const proof::Verdict verdict = hear_verdict(wrong);
  EXPECT_EQ(verdict.outcome, ErrorCode::kPermissionDenied);
  EXPECT_EQ(verdict.mac, wire::Mac{});  // it learns nothing
  EXPECT_EQ(wrong.hear(), 0);
  EXPECT_EQ(server.disconnects(), 0);
}

// The same answers, whether the id has a secret or not.
TEST(TcpStrangers, WhoIsKnownIsNotTold) {
  const auto server = serve(guarded());
  for (const std::uint64_t id : {0U, 1U}) {
    const Stranger stranger(server.address());
    stranger.say(opening(id));
    const proof::Transcript said{.opening = {.id = id, .nonce = {9}},
                                 .challenge = hear_challenge(stranger)};
    stranger.say(wire::encode(proof::client_proof(Secret{}, said, wire::encode(Preamble{}))));
    const proof::Verdict verdict = hear_verdict(stranger);
    EXPECT_EQ(verdict.outcome, ErrorCode::kPermissionDenied);
    EXPECT_EQ(verdict.mac, wire::Mac{});
    EXPECT_EQ(stranger.hear(), 0);
  }
}

TEST(TcpStrangers, AReplayIsRefused) {
  auto server = serve(guarded());
  Relay relay(server.address());
  AskingClient client(make_tcp_transport, relay.address(), {.id = 1, .secret = *secret_of(1)});
  client.expect_answer();
  const std::vector<std::byte> said = relay.client_said();
  constexpr std::size_t kOpening = Preamble::kBytes + proof::Opening::kBytes;
  ASSERT_GT(said.size(), kOpening + proof::Proof::kBytes);
  const Stranger replay(server.address());
  replay.say(said);
  static_cast<void>(hear_challenge(replay));
  EXPECT_EQ(hear_verdict(replay).outcome, ErrorCode::kPermissionDenied);
  EXPECT_EQ(replay.hear(), 0);
  client.expect_answer();
  EXPECT_EQ(server.disconnects(), 0);
}

TEST(TcpStrangers, NoByteOfAHandshakeMayDiffer) {
  const auto server = serve(guarded());
  const std::vector<std::byte> good = opening(1);
  for (std::size_t at = 0; at <= good.size() + proof::Proof::kBytes; ++at) {
    SCOPED_TRACE(at);
    const auto changed = [&](std::vector<std::byte> bytes, std::size_t begin) {
      if (at >= begin && at - begin < bytes.size()) bytes[at - begin] ^= std::byte{4};
      return bytes;
    };
    const Stranger stranger(server.address());
    stranger.say(changed(good, 0));
    const auto heard = stranger.hear(Preamble::kBytes + proof::Challenge::kBytes);
    if (heard.size() < Preamble::kBytes + proof::Challenge::kBytes) {
      EXPECT_LT(at, Preamble::kBytes);
      continue;
    }
    const auto challenge =
        wire::decode<proof::Challenge>(std::span(heard).subspan(Preamble::kBytes));
    const proof::Transcript said{.opening = {.id = 1, .nonce = {9}}, .challenge = challenge};
    stranger.say(
        changed(wire::encode(proof::client_proof(*secret_of(1), said, wire::encode(Preamble{}))),
                good.size()));
    const bool whole = at == good.size() + proof::Proof::kBytes;
    EXPECT_EQ(hear_verdict(stranger).outcome,
              whole ? ErrorCode::kOk : ErrorCode::kPermissionDenied);
  }
}

// The server's own proof does not work in place of the client's.
TEST(TcpStrangers, AReflectionIsRefused) {
  const auto server = serve(guarded());
  const Stranger stranger(server.address());
  stranger.say(opening(1));
  const proof::Transcript said{.opening = {.id = 1, .nonce = {9}},
                               .challenge = hear_challenge(stranger)};
  const proof::Verdict verdict =
      proof::server_verdict(*secret_of(1), said, ErrorCode::kOk, wire::encode(Preamble{}));
  stranger.say(wire::encode(proof::Proof{.mac = verdict.mac}));
  EXPECT_EQ(hear_verdict(stranger).outcome, ErrorCode::kPermissionDenied);
}

TEST(TcpStrangers, GarbageHarmsNobody) {
  auto server = serve(guarded());
  auto client = client_of(server);
  client.expect_answer();
  std::vector<Stranger> open;
  for (const std::size_t bytes : {1, 7, 12, 24, 52, 100, 1000, 100'000, 1'000'000}) {
    SCOPED_TRACE(bytes);
    auto all = garbage(bytes);
    all.push_back(bytes_that_abort_ucx());
    all.push_back(joined(opening(1), all.front()));  // wrong only from the proof on
    for (const std::vector<std::byte>& what : all) {
      Stranger stranger(server.address());
      stranger.say(what);
      if (bytes % 3 == 1) open.push_back(std::move(stranger));
      client.expect_answer();
    }
  }
  client_of(server).expect_answer();
  open.clear();
  client.expect_answer();
  EXPECT_TRUE(server.wait_disconnects(1));  // of the later client
  EXPECT_EQ(server.disconnects(), 1);
}

// Nothing that the 13 bytes claim is allocated, waited for or asserted.
TEST(TcpStrangers, WhoIsNoneOfUsIsSentAwayAtOnce) {
  const auto server = serve(guarded());
  for (const auto& what : {bytes_that_abort_ucx(), to_bytes("GET / HTTP/1.1\r\n\r\n"),
                           std::vector<std::byte>(Preamble::kBytes)}) {
    const Stranger stranger(server.address());
    stranger.say(what);
    EXPECT_EQ(stranger.hear(), 0);
  }
  const Stranger other_version(server.address());
  other_version.say(wire::encode(Preamble{.version = Preamble::kVersion + 1}));
  EXPECT_EQ(other_version.hear(Preamble::kBytes),
            wire::encode(Preamble{}));  // so that the other side can say why
  EXPECT_EQ(other_version.hear(), 0);
}

TEST(TcpStrangers, TheSilentAreSentAway) {
  const std::vector<std::byte> good = opening(1);
  {
    const auto server = serve(guarded(std::chrono::milliseconds(200)));
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{5}, std::size_t{20}}) {
      const Stranger stranger(server.address());
      stranger.say(std::span(good).first(bytes));
      EXPECT_EQ(stranger.hear(), 0);
    }
  }
  // An opening is answered with the challenge and no more, unless it came too late.
  constexpr std::size_t kAnswer = Preamble::kBytes + proof::Challenge::kBytes;
  const auto server = serve(guarded(std::chrono::milliseconds(200)));
  const Stranger stranger(server.address());
  stranger.say(good);
  EXPECT_THAT(stranger.hear(), testing::AnyOf(0, kAnswer));
}

TEST(TcpStrangers, TheOldestGoesWhenThereAreTooMany) {
  TransportConfig config = guarded();
  config.max_connections = 2;
  config.max_strangers = 8 * 16;
  auto server = serve(config);
  auto client = client_of(server);
  client.expect_answer();
  std::vector<Stranger> strangers;
  constexpr std::size_t kShare = 16;
  for (int i = 0; i < 100; ++i) {
    strangers.emplace_back(server.address());
    if (i % 2 == 0) strangers.back().say(opening(1));
  }
  client_of(server).expect_answer();
  client.expect_answer();
  for (std::size_t i = 0; i < strangers.size() - kShare; ++i) {
    static_cast<void>(strangers[i].hear());  // it is closed
  }
}

// Who proves himself and does not read what he asked for is not read from any more; nothing is lost
// when he reads after all.
TEST(TcpStrangers, WhoDoesNotReadIsNotRead) {
  constexpr std::size_t kAnswer = std::size_t{1} << 20;
  constexpr std::size_t kAsked = 64;
  const auto answer = std::make_shared<const std::vector<std::byte>>(kAnswer);
  std::atomic<std::size_t> taken = 0;
  TransportConfig config = guarded();
  config.max_unread_bytes = 4 * kAnswer;
  const Endpoint server(make_tcp_transport, config,
                        [&](Endpoint& self, PeerId peer, std::uint16_t type,
                            std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
                          ++taken;
                          self.send(peer, type, "", *answer);
                          return true;
                        });
  const Stranger stranger(server.address());
  introduce(stranger);
  // More than a frame's buffer of them, so that the rest waits at the socket.
  const std::vector<std::byte> header(4096);
  for (std::size_t i = 0; i < kAsked; ++i) {
    stranger.say(joined(tcp::encode({.header_bytes = 4096, .type = 3}), header));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  // What waits, what one read brings, and what the sockets hold.
  EXPECT_LT(taken, kAsked / 2);
  const std::size_t whole = kAsked * (kAnswer + tcp::encode({}).size());
  EXPECT_EQ(stranger.hear(whole).size(), whole);
  EXPECT_EQ(taken, kAsked);
}

// A message of which the rest waits because we do not read is not late.
TEST(TcpStrangers, WhoIsNotReadHasTime) {
  const std::vector<std::byte> answer(std::size_t{1} << 20);
  const std::size_t whole = answer.size() + tcp::encode({}).size();
  // Longer than any step of this test takes, since who takes so long to read is cut off.
  constexpr std::chrono::milliseconds kTimeout{4'000};
  TransportConfig config = guarded();
  config.max_unread_bytes = 4 * answer.size();
  config.send_timeout = kTimeout;
  std::atomic<PeerId> asking = 0;
  std::atomic<std::size_t> answers = 0;
  Endpoint server(make_tcp_transport, config,
                  [&](Endpoint& self, PeerId peer, std::uint16_t type,
                      std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
                    ++answers;
                    asking = peer;
                    self.send(peer, type, "", answer);
                    return true;
                  });
  const Stranger stranger(server.address());
  introduce(stranger);
  const std::vector<std::byte> question =
      joined(tcp::encode({.header_bytes = 4096, .type = 3}), std::vector<std::byte>(4096));
  const auto half = question.begin() + 2000;
  // Wherever the server stops to read, it has begun a question.
  stranger.say({question.begin(), half});
  for (int i = 0; i < 64; ++i) {
    stranger.say(joined({half, question.end()}, {question.begin(), half}));
  }
  // The second time that the server looks, the question is late by a whole time-out.
  const auto end = std::chrono::steady_clock::now() + 2 * kTimeout + kTimeout / 2;
  std::size_t heard = stranger.hear(whole).size();
  std::size_t sent = 1;
  for (; std::chrono::steady_clock::now() < end; ++sent) {
    server.send(asking, 4, "", answer);
    heard += stranger.hear(whole).size();
    std::this_thread::sleep_for(kTimeout / 40);
  }
  EXPECT_LT(answers, 32U);  // the others wait
  EXPECT_EQ(heard, sent * whole);
}

TEST(TcpStrangers, AServerOfAnotherKindIsNamed) {
  const auto server = serve(guarded());
  const auto answer = [](std::vector<std::byte> what) {
    return [what = std::move(what)](bool to_server, std::size_t at, std::vector<std::byte>& bytes) {
      if (!to_server && at == 0) bytes = what;
    };
  };
  const auto other = wire::encode(Preamble{.version = Preamble::kVersion + 1});
  for (const auto& [what, code] :
       {std::pair(to_bytes("HTTP/1.1 400 Bad Request"), ErrorCode::kMalformedInput),
        std::pair(other, ErrorCode::kUnsupported),
        std::pair(std::vector<std::byte>(), ErrorCode::kUnavailable)}) {
    const Relay relay(server.address(), answer(what));
    AskingClient client(make_tcp_transport, relay.address(), {.id = 1, .secret = *secret_of(1)});
    EXPECT_EQ(client.wait_disconnect().code(), code);
  }
}

}  // namespace tributary::testing_support
