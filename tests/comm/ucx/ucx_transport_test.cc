// The transport over UCX joins the suite of transports, sleeping and spinning.
#include "comm/ucx/ucx_transport.h"

#include "tests/comm/transport/transport_conformance.h"

namespace tributary::testing_support {
namespace {

TransportMaker maker(const std::string& name, bool busy_poll) {
  return {.name = name,
          .listen = "127.0.0.1:0",
          .nobody = "127.0.0.1:1",
          .network = [busy_poll]() -> Endpoint::Make {
            return [busy_poll](TransportConfig config, TransportHandler& handler) {
              // One side: dozens of spinning clients would starve each other.
              config.busy_poll = busy_poll && !config.listen.empty();
              return make_ucx_transport(config, handler);
            };
          }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Ucx, TransportConformance,
                         testing::Values(maker("Sleeping", false), maker("Spinning", true)),
                         maker_name);

}  // namespace tributary::testing_support
