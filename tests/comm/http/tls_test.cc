// TLS of the server, the HTTP client and the WebSocket client.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/objects.h>
#include <openssl/ssl.h>

#include <fstream>
#include <future>
#include <string>

#include "comm/http/certificate_check.h"
#include "comm/http/http_client.h"
#include "comm/http/http_server.h"
#include "comm/http/tls_context.h"
#include "core/base/error.h"
#include "tests/comm/http/loop_thread.h"
#include "tests/comm/http/raw_client.h"
#include "tests/comm/http/test_certificates.h"

namespace tributary {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

class Tls : public testing::Test {
 protected:
  static void SetUpTestSuite() { certificates = new TestCertificates(); }
  static void TearDownTestSuite() {
    delete certificates;
    certificates = nullptr;
  }

  static HttpServerConfig config(const std::string& name) {
    HttpServerConfig config;
    config.tls =
        HttpServerConfig::Tls{certificates->path(name + ".pem"), certificates->path(name + ".key")};
    return config;
  }

  static HttpHandlers handlers() {
    HttpHandlers handlers;
    handlers.request = [](const HttpRequest& request, const HttpRespond& respond) {
      HttpResponse response;
      response.body = request.path == "/big" ? std::string(1 << 20, 'x') : request.path;
      respond(std::move(response));
    };
    handlers.may_upgrade = [](const HttpRequest&) { return std::nullopt; };
    handlers.upgraded = [](const HttpRequest&, const std::shared_ptr<WebSocket>& socket) {
      WebSocketHandlers echo;
      echo.message = [socket](std::string_view text) { socket->send(std::string(text)); };
      socket->set_handlers(std::move(echo));
    };
    return handlers;
  }

  static HttpClientConfig client(const TestServer& server, const std::string& host,
                                 const std::string& authority) {
    Url url = parse_url("https://" + server.address());
    url.host = host;
    return {url, "", certificates->path(authority + ".pem").string(), std::size_t{4} << 20};
  }

  static std::string refusal(const HttpClientConfig& config) {
    HttpClient http(config);
    try {
      (void)http.request("GET", "/", "", Deadline::after(kPatience));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnavailable) << error.what();
      return error.what();
    }
    return "no error";
  }

  static TestCertificates* certificates;
};
TestCertificates* Tls::certificates = nullptr;

TEST_F(Tls, ServesByNameAndByAddress) {
  TestServer server(config("good"), handlers());
  for (const char* host : {"localhost", "127.0.0.1"}) {
    HttpClient http(client(server, host, "ca"));
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(http.request("GET", "/tls", "", Deadline::after(kPatience)).body, "/tls");
    }
    EXPECT_EQ(http.request("GET", "/big", "", Deadline::after(kPatience)).body.size(), 1U << 20);
  }
}

/// OpenSSL's defaults still allow CBC with SHA-1, and session keys encrypted with the
/// certificate's.
TEST_F(Tls, OldCiphersAreOff) {
  for (const TlsContext& context :
       {server_tls_context(certificates->path("good.pem"), certificates->path("good.key")),
        client_tls_context(certificates->path("ca.pem").string())}) {
    const STACK_OF(SSL_CIPHER)* ciphers = SSL_CTX_get_ciphers(context->native_handle());
    ASSERT_GT(sk_SSL_CIPHER_num(ciphers), 3);
    for (int i = 0; i < sk_SSL_CIPHER_num(ciphers); ++i) {
      const SSL_CIPHER* cipher = sk_SSL_CIPHER_value(ciphers, i);
      EXPECT_EQ(SSL_CIPHER_is_aead(cipher), 1) << SSL_CIPHER_get_name(cipher);
      EXPECT_THAT(SSL_CIPHER_get_kx_nid(cipher), testing::AnyOf(NID_kx_ecdhe, NID_kx_any));
    }
  }
}

TEST_F(Tls, ClientsRefuseBadCertificates) {
  TestServer good(config("good"), handlers());
  EXPECT_THAT(refusal(client(good, "127.0.0.1", "other_ca")), HasSubstr("its certificate: "));
  TestServer expired(config("expired"), handlers());
  EXPECT_THAT(refusal(client(expired, "localhost", "ca")), HasSubstr("certificate has expired"));
  TestServer wrong(config("wrong_host"), handlers());
  EXPECT_THAT(refusal(client(wrong, "localhost", "ca")), HasSubstr("ostname mismatch"));
  EXPECT_THAT(refusal(client(wrong, "127.0.0.1", "ca")), HasSubstr("IP address mismatch"));
}

TEST_F(Tls, ACertificateIsJudgedAsItsPeersWill) {
  const auto verdict = [](const std::string& name, const std::string& authority,
                          const std::string& host, CertificateUse use = CertificateUse::kServer) {
    const Status status = status_of([&] {
      check_certificate(certificates->path(name + ".pem"), certificates->path(authority + ".pem"),
                        host, use);
    });
    if (!status.ok()) {
      EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(status.message(), HasSubstr(certificates->path(name + ".pem").string()));
    }
    return status.message();
  };
  EXPECT_EQ(verdict("good", "ca", "127.0.0.1"), "");
  EXPECT_EQ(verdict("good", "ca", "localhost"), "");
  EXPECT_EQ(verdict("good", "ca", "", CertificateUse::kClient), "");
  EXPECT_THAT(verdict("wrong_host", "ca", "127.0.0.1"), HasSubstr("IP address mismatch"));
  EXPECT_THAT(verdict("wrong_host", "ca", "localhost"), HasSubstr("ostname mismatch"));
  EXPECT_THAT(verdict("expired", "ca", "127.0.0.1"), HasSubstr("certificate has expired"));
  EXPECT_THAT(verdict("good", "other_ca", "127.0.0.1"), HasSubstr("issuer certificate"));
  EXPECT_THAT(verdict("ca", "other_ca", ""), HasSubstr("self-signed certificate"));
  EXPECT_THAT(verdict("nowhere", "ca", ""), HasSubstr("nowhere.pem"));
}

TEST_F(Tls, AUrlOfTheOtherSchemeIsNamed) {
  TestServer encrypted(config("good"), handlers());
  HttpClientConfig to = client(encrypted, "127.0.0.1", "ca");
  to.url.tls = false;
  EXPECT_THAT(refusal(to), HasSubstr("is its URL https://?"));
  TestServer plain(HttpServerConfig{}, handlers());
  EXPECT_THAT(refusal(client(plain, "127.0.0.1", "ca")), HasSubstr("is its URL http://?"));
}

TEST_F(Tls, PlainBytesGetNoAnswer) {
  HttpServerConfig short_config = config("good");
  short_config.read_timeout = 300ms;
  TestServer server(short_config, handlers());
  const RawClient plain(server.address());
  plain.send("GET / HTTP/1.1\r\nHost: t\r\n\r\n");
  EXPECT_THAT(plain.read_all(), testing::Not(HasSubstr("HTTP/")));
  const RawClient silent(server.address());
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_TRUE(eventually([&] { return server.server().connections() == 0; }));
}

TEST_F(Tls, WebSocketsToo) {
  TestServer server(config("good"), handlers());
  LoopThread thread;
  WebSocketClientConfig to;
  to.url = client(server, "localhost", "ca").url;
  to.certificate_authority = certificates->path("ca.pem").string();
  std::promise<std::string> echoed;
  auto future = echoed.get_future();
  std::shared_ptr<WebSocket> kept;
  connect_websocket(thread.loop(), to,
                    [&](const std::shared_ptr<WebSocket>& socket, const Status& status) {
                      if (socket == nullptr) return echoed.set_value(status.message());
                      kept = socket;
                      WebSocketHandlers receive;
                      receive.message = [&](std::string_view text) {
                        echoed.set_value(std::string(text.substr(0, 5)));
                      };
                      socket->set_handlers(std::move(receive));
                      socket->send("hello" + std::string(1 << 20, 'x'));
                    });
  EXPECT_EQ(await(future), "hello");

  to.certificate_authority = certificates->path("other_ca.pem").string();
  std::promise<Status> refused;
  auto why = refused.get_future();
  connect_websocket(
      thread.loop(), to,
      [&](const std::shared_ptr<WebSocket>&, const Status& status) { refused.set_value(status); });
  const Status status = await(why);
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("its certificate: "));
}

TEST_F(Tls, BadFilesAreNamed) {
  EventLoop loop;
  const auto expect = [&](const std::string& certificate, const std::string& key,
                          const std::string& named) {
    HttpServerConfig bad;
    bad.tls = HttpServerConfig::Tls{certificates->path(certificate), certificates->path(key)};
    try {
      const HttpServer server(loop, bad, handlers());
      FAIL() << certificate << " " << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(certificates->path(named).string()));
    }
  };
  std::ofstream(certificates->path("empty.pem")).flush();
  expect("absent.pem", "good.key", "absent.pem");
  expect("empty.pem", "good.key", "empty.pem");
  expect("good.pem", "absent.key", "absent.key");
  expect("good.pem", "expired.key", "expired.key");
  EXPECT_THROW(HttpClient({parse_url("https://localhost:1"), "",
                           certificates->path("absent.pem").string(), 1024}),
               Error);
}

}  // namespace
}  // namespace tributary
