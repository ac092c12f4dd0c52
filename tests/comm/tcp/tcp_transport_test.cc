// The transport over TCP joins the suite of transports: sleeping, spinning, and encrypted with
// certificates on both sides.
#include "comm/tcp/tcp_transport.h"

#include "tests/comm/http/test_certificates.h"
#include "tests/comm/transport/transport_conformance.h"

namespace tributary::testing_support {
namespace {

TransportMaker maker(const std::string& name, std::function<Endpoint::Make()> network) {
  return {.name = name,
          .listen = "127.0.0.1:0",
          .nobody = "127.0.0.1:1",
          .network = std::move(network)};
}

Endpoint::Make plain(bool busy_poll) {
  return [busy_poll](TransportConfig config, TransportHandler& handler) {
    // One side: dozens of spinning clients would starve each other.
    config.busy_poll = busy_poll && !config.listen.empty();
    return make_tcp_transport(config, handler);
  };
}

Endpoint::Make encrypted() {
  static const TestCertificates certificates;
  return [](TransportConfig config, TransportHandler& handler) {
    config.tls = TransportTls{.certificate = certificates.path("good.pem"),
                              .key = certificates.path("good.key"),
                              .authority = certificates.path("ca.pem"),
                              .client_authority = certificates.path("ca.pem")};
    return make_tcp_transport(config, handler);
  };
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Tcp, TransportConformance,
                         testing::Values(maker("Sleeping", [] { return plain(false); }),
                                         maker("Spinning", [] { return plain(true); }),
                                         maker("Encrypted", encrypted)),
                         maker_name);

}  // namespace tributary::testing_support
