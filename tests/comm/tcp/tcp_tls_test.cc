// The transport over TCP with TLS: certificates on both sides and the proof inside TLS decide who
// is admitted.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/tcp/preamble.h"
#include "comm/tcp/tcp_transport.h"
#include "comm/transport/proof.h"
#include "tests/comm/http/test_certificates.h"
#include "tests/comm/transport/answering.h"
#include "tests/comm/transport/relay.h"

namespace tributary::testing_support {
namespace {

/// Has a certificate that the client trusts, so that each side speaks TLS with it alone, and hands
/// on the messages of their handshake as they are.
class ManInTheMiddle {
 public:
  ManInTheMiddle(const std::string& server, const TransportTls& files) : server_(server) {
    listening_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listening_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listening_, 1), 0);
    EXPECT_EQ(getsockname(listening_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this, files] { run(files); });
  }
  ~ManInTheMiddle() {
    thread_.join();
    ::close(listening_);
  }
  ManInTheMiddle(const ManInTheMiddle&) = delete;
  ManInTheMiddle& operator=(const ManInTheMiddle&) = delete;
  [[nodiscard]] const std::string& address() const { return address_; }
  /// Whether it saw the client's proof. Call it after the client's end.
  [[nodiscard]] bool saw_proof() const { return saw_proof_; }

 private:
  using Session = std::unique_ptr<SSL, decltype(&SSL_free)>;
  using Context = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

  static bool hand_on(SSL* from, SSL* to, std::size_t bytes) {
    std::vector<std::byte> data(bytes);
    std::size_t done = 0;
    for (std::size_t at = 0; at < bytes; at += done) {
      if (SSL_read_ex(from, data.data() + at, bytes - at, &done) != 1) return false;
    }
    return SSL_write_ex(to, data.data(), bytes, &done) == 1;
  }

  void run(const TransportTls& files) {
    const Context as_server(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
    const Context as_client(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    SSL_CTX_use_certificate_chain_file(as_server.get(), files.certificate.c_str());
    SSL_CTX_use_PrivateKey_file(as_server.get(), files.key.c_str(), SSL_FILETYPE_PEM);
    const int client = accept(listening_, nullptr, nullptr);
    const int server = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {}, .sin_zero = {}};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const auto port = std::stoi(server_.substr(server_.rfind(':') + 1));
    to.sin_port = htons(static_cast<std::uint16_t>(port));
    EXPECT_EQ(connect(server, reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    const Session near(SSL_new(as_server.get()), SSL_free);
    const Session far(SSL_new(as_client.get()), SSL_free);
    SSL_set_fd(near.get(), client);
    SSL_set_fd(far.get(), server);
    if (SSL_accept(near.get()) == 1 && SSL_connect(far.get()) == 1 &&
        hand_on(near.get(), far.get(), tcp::Preamble::kBytes + proof::Opening::kBytes) &&
        hand_on(far.get(), near.get(), tcp::Preamble::kBytes + proof::Challenge::kBytes)) {
      saw_proof_ = hand_on(near.get(), far.get(), proof::Proof::kBytes);
      static_cast<void>(hand_on(far.get(), near.get(), proof::Verdict::kBytes));
    }
    ::close(client);
    ::close(server);
  }

  const std::string server_;
  int listening_ = -1;
  std::string address_;
  bool saw_proof_ = false;
  std::thread thread_;
};

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
    const ManInTheMiddle other(server.address(), tls("good", ""));
    client.emplace(make_tcp_transport, other.address(), Introduction{.id = 1, .secret = kSecret},
                   TransportConfig{.tls = tls("", "ca")});
    client->ask();
    EXPECT_EQ(client->wait_disconnect().code(), ErrorCode::kPermissionDenied);
    EXPECT_TRUE(other.saw_proof());
  }
  EXPECT_EQ(server.disconnects(), 0U);
}

TEST_F(TcpTls, AClientWithoutTheRightOneIsRefused) {
  AnsweringServer server(make_tcp_transport, listening(tls("good", "ca")));
  for (const auto& client : {std::optional(tls("", "ca")), std::optional(tls("expired", "ca")),
                             std::optional<TransportTls>()}) {
    EXPECT_EQ(ask(server, client).wait_disconnect().code(), ErrorCode::kUnavailable);
  }
  const AnsweringServer strict(make_tcp_transport, listening(tls("good", "other_ca")));
  EXPECT_EQ(ask(strict, tls("good", "ca")).wait_disconnect().code(), ErrorCode::kUnavailable);
  ask(server, tls("good", "ca")).expect_answer();
}

TEST_F(TcpTls, AServerWithoutTheRightOneIsLeft) {
  for (const std::string certificate : {"wrong_host", "expired"}) {
    const AnsweringServer server(make_tcp_transport, listening(tls(certificate, "")));
    const Status why = ask(server, tls("", "ca")).wait_disconnect();
    EXPECT_EQ(why.code(), ErrorCode::kUnavailable);
    EXPECT_NE(why.message().find("certificate"), std::string::npos) << why.message();
  }
  const AnsweringServer server(make_tcp_transport, listening(tls("good", "")));
  const Status why = ask(server, tls("", "other_ca")).wait_disconnect();
  EXPECT_EQ(why.code(), ErrorCode::kUnavailable);
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
