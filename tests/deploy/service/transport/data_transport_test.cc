// Addresses with a scheme: a client uses the transport that each names.
#include "deploy/service/transport/data_transport.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tests/comm/http/test_certificates.h"
#include "tests/comm/transport/answering.h"
#include "tests/core/base/expect_error.h"

namespace tributary::testing_support {
namespace {

constexpr Secret kSecret{7};

TransportConfig listening(const std::string& scheme) {
  return {.listen = scheme + "://127.0.0.1:0",
          .secret_of = [](std::uint64_t) { return std::optional(kSecret); }};
}

TEST(DataTransport, SpeaksAsAnAddressSays) {
  for (const std::string scheme : {"tcp", "ucx"}) {
    SCOPED_TRACE(scheme);
    const AnsweringServer server(make_data_transport(), listening(scheme));
    EXPECT_TRUE(server.address().starts_with(scheme + "://127.0.0.1:")) << server.address();
    AskingClient client(make_data_transport(), server.address(), {.id = 1, .secret = kSecret});
    client.expect_answer();
  }
}

TEST(DataTransport, EncryptsWhereTheAddressSaysSo) {
  const TestCertificates files;
  TransportConfig config = listening("tls");
  config.tls = {.certificate = files.path("good.pem"),
                .key = files.path("good.key"),
                .authority = {},
                .client_authority = {}};
  const AnsweringServer server(make_data_transport(), config);
  EXPECT_TRUE(server.address().starts_with("tls://")) << server.address();
  const TransportConfig trusting{
      .tls = TransportTls{
          .certificate = {}, .key = {}, .authority = files.path("ca.pem"), .client_authority = {}}};
  AskingClient client(make_data_transport(), server.address(), {.id = 1, .secret = kSecret},
                      trusting);
  client.expect_answer();
  // Nobody that the system knows has signed this one.
  AskingClient careful(make_data_transport(), server.address(), {.id = 1, .secret = kSecret});
  EXPECT_EQ(careful.wait_disconnect().code(), ErrorCode::kPermissionDenied);
}

TEST(DataTransport, AClientAgreesToNoOtherThanAsked) {
  Endpoint tcp(make_data_transport(TransportChoice::kTcp), {});
  Endpoint ucx(make_data_transport(TransportChoice::kUcx), {});
  const auto code = [](Endpoint& client, const std::string& address) {
    return code_of([&] { (void)client.transport().connect(address); });
  };
  EXPECT_EQ(code(tcp, "ucx://127.0.0.1:1"), ErrorCode::kUnsupported);
  EXPECT_EQ(code(ucx, "tcp://127.0.0.1:1"), ErrorCode::kUnsupported);
  EXPECT_EQ(code(tcp, "127.0.0.1:1"), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(tcp, "tcp://somewhere:1"), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary::testing_support
