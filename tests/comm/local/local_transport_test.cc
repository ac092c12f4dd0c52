// The transport inside one process joins the suite of transports.
#include "comm/local/local_transport.h"

#include "tests/comm/transport/transport_conformance.h"

namespace tributary::testing_support {

INSTANTIATE_TEST_SUITE_P(Local, TransportConformance,
                         testing::Values(TransportMaker{
                             .name = "InProcess",
                             .listen = "here:0",
                             .nobody = "nobody:1",
                             .network =
                                 [] {
                                   return [network = std::make_shared<LocalNetwork>()](
                                              const TransportConfig& config,
                                              TransportHandler& handler) {
                                     return make_local_transport(network, config, handler);
                                   };
                                 }}),
                         maker_name);

TEST(LocalTransport, NetworksDoNotMeet) {
  const auto make = [](const std::shared_ptr<LocalNetwork>& network) -> Endpoint::Make {
    return [network](const TransportConfig& config, TransportHandler& handler) {
      return make_local_transport(network, config, handler);
    };
  };
  const Endpoint server(make(std::make_shared<LocalNetwork>()), {.listen = "here:7"});
  Endpoint client(make(std::make_shared<LocalNetwork>()), {});
  const PeerId peer = client.transport().connect(server.address());
  EXPECT_EQ(client.wait_disconnect(peer).code(), ErrorCode::kUnavailable);
}

}  // namespace tributary::testing_support
