// The transport over TCP with TLS: certificates on both sides and the proof inside TLS decide who
// is admitted.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/tcp/preamble.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport/proof.h"
#include "tests/comm/http/man_in_the_middle.h"
#include "tests/comm/http/test_certificates.h"
#include "tests/comm/transport/answering.h"
#include "tests/comm/transport/relay.h"

namespace tributary::testing_support {
namespace {

class TcpTls : public testing::Test {
 protected:
  static void SetUpTestSuite() { certificates_ = std::make_unique<TestCertificates>(); }
  static void TearDownTestSuite() { certificates_.reset(); }

  /// Empty: none.
  static TransportTls tls(const std::string& certificate, const std::string& authority) {
    TransportTls files;
    if (!certificate.empty()) {
      files.certificate = certificates_->path(certificate + ".pem");
      files.key = certificates_->path(certificate + ".key");
    }
    if (!authority.empty()) files.authority = certificates_->path(authority + ".pem");
    files.client_authority = files.authority;
    return files;
  }
  static TransportConfig listening(const TransportTls& tls) {
    return {.listen = "127.0.0.1:0",
            .secret_of = [](std::uint64_t) { return std::optional(kSecret); },
            .tls = tls};
  }
  static AskingClient ask(const AnsweringServer& server, const std::optional<TransportTls>& tls,
                          const Secret& secret = kSecret) {
    return {make_tcp_transport, server.address(), {.id = 1, .secret = secret}, {.tls = tls}};
  }

  static constexpr Secret kSecret{7};
  static std::unique_ptr<TestCertificates> certificates_;
};

std::unique_ptr<TestCertificates> TcpTls::certificates_;

TEST_F(TcpTls, BothShowCertificates) {
  const AnsweringServer server(make_tcp_transport, listening(tls("good", "ca")));
  ask(server, tls("good", "ca")).expect_answer();
  // A client's certificate need not name its host.
  ask(server, tls("wrong_host", "ca")).expect_answer();
}

TEST_F(TcpTls, AClientMayBeWithoutOneWhereNoneIsAsked) {
  const AnsweringServer server(make_tcp_transport, listening(tls("good", "")));
  ask(server, tls("", "ca")).expect_answer();
}

// Who ends the client's TLS with a certificate of his own cannot hand on its proof: it is of the
// client's session, and the server has another one.
TEST_F(TcpTls, AProofIsOfItsSessionAlone) {
  AnsweringServer server(make_tcp_transport, listening(tls("good", "")));
  std::optional<AskingClient> client;
  {
    const TransportTls files = tls("good", "");
    const ManInTheMiddle other(server.address(), files.certificate, files.key,
                               {tcp::Preamble::kBytes + proof::Opening::kBytes,
                                tcp::Preamble::kBytes + proof::Challenge::kBytes,
                                proof::Proof::kBytes, proof::Verdict::kBytes});
    client.emplace(make_tcp_transport, other.address(), Introduction{.id = 1, .secret = kSecret},
                   TransportConfig{.tls = tls("", "ca")});
    client->ask();
    EXPECT_EQ(client->wait_disconnect().code(), ErrorCode::kPermissionDenied);
    EXPECT_GE(other.handed_on(), 3U);  // its proof too
  }
  EXPECT_EQ(server.disconnects(), 0U);
}

TEST_F(TcpTls, AClientWithoutTheRightOneIsRefused) {
  AnsweringServer server(make_tcp_transport, listening(tls("good", "ca")));
  for (const auto& [certificate, reason] :
       {std::pair("", "certificate required"), std::pair("expired", "certificate expired")}) {
    const Status why = ask(server, tls(certificate, "ca")).wait_disconnect();
    EXPECT_EQ(why.code(), ErrorCode::kPermissionDenied);
    EXPECT_NE(why.message().find(reason), std::string::npos) << why.message();
  }
  EXPECT_EQ(ask(server, std::optional<TransportTls>()).wait_disconnect().code(),
            ErrorCode::kUnavailable);
  const AnsweringServer strict(make_tcp_transport, listening(tls("good", "other_ca")));
  EXPECT_EQ(ask(strict, tls("good", "ca")).wait_disconnect().code(), ErrorCode::kPermissionDenied);
  ask(server, tls("good", "ca")).expect_answer();
}

TEST_F(TcpTls, AServerWithoutTheRightOneIsLeft) {
  for (const std::string certificate : {"wrong_host", "expired"}) {
    const AnsweringServer server(make_tcp_transport, listening(tls(certificate, "")));
    const Status why = ask(server, tls("", "ca")).wait_disconnect();
    EXPECT_EQ(why.code(), ErrorCode::kPermissionDenied);
    EXPECT_NE(why.message().find("certificate"), std::string::npos) << why.message();
  }
  const AnsweringServer server(make_tcp_transport, listening(tls("good", "")));
  const Status why = ask(server, tls("", "other_ca")).wait_disconnect();
  EXPECT_EQ(why.code(), ErrorCode::kPermissionDenied);
  EXPECT_NE(why.message().find("certificate"), std::string::npos) << why.message();
}

TEST_F(TcpTls, AServerThatDoesNotEncryptIsLeft) {
  const AnsweringServer server(make_tcp_transport, {.listen = "127.0.0.1:0"});
  EXPECT_EQ(ask(server, tls("", "ca")).wait_disconnect().code(), ErrorCode::kUnavailable);
}

TEST_F(TcpTls, TheProofIsAskedForInside) {
  const AnsweringServer server(make_tcp_transport, listening(tls("good", "ca")));
  EXPECT_EQ(ask(server, tls("good", "ca"), {8}).wait_disconnect().code(),
            ErrorCode::kPermissionDenied);
}

TEST_F(TcpTls, NobodyOnTheWayReadsAnything) {
  const AnsweringServer server(make_tcp_transport, listening(tls("good", "ca")));
  Relay relay(server.address());
  AskingClient client(make_tcp_transport, relay.address(), {.id = 1, .secret = kSecret},
                      {.tls = tls("good", "ca")});
  client.expect_answer();
  const std::vector<std::byte> said = relay.client_said();
  const std::string text(reinterpret_cast<const char*>(said.data()), said.size());
  EXPECT_EQ(text.find("TRIBTCP"), std::string::npos);
  EXPECT_EQ(text.find("who is there?"), std::string::npos);
}

// OpenSSL vouches for it; a connection that was cut in transit is "stream truncated".
TEST_F(TcpTls, AnOrderlyEndReadsAsOne) {
  Endpoint server(make_tcp_transport, listening(tls("good", "ca")));
  AskingClient client(make_tcp_transport, server.address(), {.id = 1, .secret = kSecret},
                      {.tls = tls("good", "ca")});
  client.ask();
  server.transport().disconnect(server.receive().peer);
  const Status why = client.wait_disconnect();
  EXPECT_EQ(why.code(), ErrorCode::kUnavailable);
  EXPECT_NE(why.message().find("closed by the other side"), std::string::npos) << why.message();
}

TEST_F(TcpTls, FilesThatCannotBeUsedAreNamed) {
  TransportTls missing = tls("good", "ca");
  missing.key = "/nowhere/some.key";
  for (const std::string listen : {"", "127.0.0.1:0"}) {
    TransportConfig config = listening(missing);
    config.listen = listen;
    try {
      const Endpoint endpoint(make_tcp_transport, config);
      ADD_FAILURE() << "it was made";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find(missing.key), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace tributary::testing_support
