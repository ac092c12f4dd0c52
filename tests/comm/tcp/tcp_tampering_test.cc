// Bytes that are changed or cut in transit: the connection ends, or only the contents of a message
// have changed. No other client notices, and no memory of others is touched.
#include <gtest/gtest.h>

#include <future>
#include <optional>
#include <random>
#include <utility>

#include "comm/tcp/frame_header.h"
#include "comm/tcp/preamble.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport/proof.h"
#include "tests/comm/http/test_certificates.h"
#include "tests/comm/transport/relay.h"
#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::testing_support {
namespace {

constexpr std::size_t kPayload = 40'000;
constexpr int kMessages = 3;
// Sizes of the handshake's messages, and of everything that a client sends.
constexpr std::size_t kOpening = tcp::Preamble::kBytes + proof::Opening::kBytes;
constexpr std::size_t kChallenge = tcp::Preamble::kBytes + proof::Challenge::kBytes;
constexpr std::size_t kProof = proof::Proof::kBytes;
constexpr std::size_t kVerdict = proof::Verdict::kBytes;
constexpr std::size_t kSaid =
    kOpening + kProof + kMessages * (tcp::FrameHeader::kBytes + 6 + kPayload);

/// Changes one bit, or ends the connection, at a position in what one side sends.
struct Tampering {
  bool to_server = true;
  std::size_t at = 0;
  int bit = -1;  // -1: the end

  void operator()(bool direction, std::size_t begin, std::vector<std::byte>& bytes) const {
    if (direction != to_server || at < begin || at >= begin + bytes.size()) return;
    if (bit < 0) {
      bytes.resize(at - begin);
    } else {
      bytes[at - begin] ^= static_cast<std::byte>(1U << static_cast<unsigned>(bit));
    }
  }
};

/// Early bytes, which are structure, more often than late ones, which are payload.
Tampering random_tampering(std::mt19937_64& random) {
  Tampering tampering;
  tampering.to_server = random() % 4 != 0;
  const std::size_t said = tampering.to_server ? (random() % 3 == 0 ? kSaid : 150) : 130;
  tampering.at = random() % said;
  tampering.bit = random() % 4 == 0 ? -1 : static_cast<int>(random() % 8);
  return tampering;
}

/// Whether a client gets all its answers, or its connection ends first.
class Outcome final : public TransportHandler {
 public:
  std::optional<Landing> on_message(PeerId /*peer*/, std::uint16_t /*type*/,
                                    std::span<const std::byte> /*header*/,
                                    std::size_t /*payload_bytes*/) override {
    if (++answers_ == kMessages) settle(false);
    return std::nullopt;
  }
  void on_disconnect(PeerId /*peer*/, const Status& reason) override {
    EXPECT_FALSE(reason.ok());
    settle(true);
  }
  /// Waits for the outcome; true if the connection has ended.
  [[nodiscard]] bool wait() {
    auto ended = ended_.get_future();
    EXPECT_EQ(ended.wait_for(kAmple), std::future_status::ready);
    return ended.get();
  }

 private:
  void settle(bool ended) {
    if (!std::exchange(settled_, true)) ended_.set_value(ended);
  }
  int answers_ = 0;
  bool settled_ = false;
  std::promise<bool> ended_;
};

/// A server that takes every payload, and clients whose bytes are tampered with.
class Disturbed {
 public:
  explicit Disturbed(std::optional<TransportTls> tls = {})
      : tls_(std::move(tls)),
        server_(make_tcp_transport,
                // Waits for bytes that never arrive end before the test's deadline, but outlast a
                // machine that stalls in the middle of an honest message.
                {.listen = "127.0.0.1:0",
                 .max_payload_bytes = 2 * kPayload,
                 .send_timeout = std::chrono::seconds(5),
                 .tls = tls_},
                [](Endpoint& self, PeerId peer, std::uint16_t type,
                   std::span<const std::byte> /*header*/, std::size_t /*bytes*/) {
                  self.send(peer, type, "here");
                  return false;
                }) {}

  /// True when the client's connection has ended.
  bool disturb(const Tampering& tampering) {
    const Relay relay(server_.address(), tampering);
    Outcome outcome;
    const auto client = make_tcp_transport({.tls = tls_}, outcome);
    const PeerId peer = client->connect(relay.address());
    for (int i = 0; i < kMessages; ++i) {
      client->send(peer,
                   {.type = 1, .header = to_bytes("header"), .payload = {payload_}, .sent = {}});
    }
    return outcome.wait();
  }

  /// Another client is served at the same time.
  void expect_service() {
    Endpoint client(make_tcp_transport, {.tls = tls_});
    const PeerId peer = client.transport().connect(server_.address());
    client.send(peer, 2, "honest", payload_);
    EXPECT_EQ(client.receive().header, to_bytes("here"));
    EXPECT_EQ(client.disconnects(), 0);
  }

 private:
  const std::optional<TransportTls> tls_;
  const std::vector<std::byte> payload_ = test_bytes(kPayload, 1);
  Endpoint server_;
};

}  // namespace

TEST(TcpTampering, WithoutItAllArrives) {
  Disturbed tier;
  EXPECT_FALSE(tier.disturb({.at = kSaid}));
  tier.expect_service();
}

// tcp_strangers_test.cc covers the client's side of the handshake.
TEST(TcpTampering, NoByteOfTheServersHandshakeMayDiffer) {
  Disturbed tier;
  for (std::size_t at = 0; at < kChallenge + kVerdict; at += 3) {  // every field
    EXPECT_TRUE(tier.disturb({.to_server = false, .at = at, .bit = static_cast<int>(at % 8)}))
        << at;
  }
  tier.expect_service();
}

// Every byte of a frame's lengths and mark.
TEST(TcpTampering, NoLengthMayDiffer) {
  Disturbed tier;
  for (std::size_t at = 0; at < 16; ++at) {
    if (at == 12 || at == 13) continue;  // the type is the message's own
    EXPECT_TRUE(tier.disturb({.at = kOpening + kProof + at, .bit = static_cast<int>(at % 8)}))
        << at;
  }
  tier.expect_service();
}

TEST(TcpTampering, AnywhereHarmsNobodyElse) {
  std::mt19937_64 random(20261122);
  Disturbed tier;
  int ended = 0;
  for (int i = 0; i < 40; ++i) {
    const Tampering tampering = random_tampering(random);
    SCOPED_TRACE(testing::Message() << "to the " << (tampering.to_server ? "server" : "client")
                                    << " at " << tampering.at << ", bit " << tampering.bit);
    const bool has_ended = tier.disturb(tampering);
    // The last answer is sent before the last payload has arrived.
    if (tampering.bit < 0 && tampering.at < kSaid - kPayload) {
      EXPECT_TRUE(has_ended);
    }
    ended += has_ended ? 1 : 0;
    if (i % 10 == 0) tier.expect_service();
  }
  EXPECT_GT(ended, 15);
  tier.expect_service();
}

// With TLS no bit of any message may change.
TEST(TcpTampering, EncryptedNothingMayDiffer) {
  const TestCertificates certificates;
  Disturbed tier(TransportTls{.certificate = certificates.path("good.pem"),
                              .key = certificates.path("good.key"),
                              .authority = certificates.path("ca.pem"),
                              .client_authority = certificates.path("ca.pem")});
  EXPECT_FALSE(tier.disturb({.at = 2 * kSaid}));
  std::mt19937_64 random(20261122);
  for (int i = 0; i < 16; ++i) {
    // Early enough that a reader which now expects more bytes gets them.
    const Tampering tampering{.to_server = i % 4 != 0,
                              .at = random() % (i % 4 != 0 ? kSaid / 2 : 800),
                              .bit = static_cast<int>(random() % 8)};
    EXPECT_TRUE(tier.disturb(tampering)) << tampering.at;
  }
  tier.expect_service();
}

}  // namespace tributary::testing_support
