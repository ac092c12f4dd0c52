// The communicator that pool tests use in place of one on a backend's stream joins the suite too.
#include <gtest/gtest.h>

#include <string>

#include "comm/local/run_ranks.h"
#include "kernels/reference/reference_backend.h"
#include "tests/comm/communicator_conformance.h"
#include "tests/comm/device_buffers.h"
#include "tests/core/interface/deferred_backend.h"
#include "tests/core/interface/deferred_communicator.h"

namespace tributary::testing_support {
namespace {

RankLauncher deferred(int ranks) {
  return {"Deferred" + std::to_string(ranks), ranks, [ranks](const auto& body) {
            run_ranks(ranks, [&](Communicator& host) {
              test::DeferredQueue queue;
              test::DeferredBackend backend(make_reference_backend(), queue);
              test::DeferredCommunicator exchange(host, queue);
              DeviceBuffers communicator(backend, exchange);
              body(communicator);
              EXPECT_EQ(queue.hazards(), 0);
            });
          }};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Deferred, CommunicatorConformance,
                         testing::Values(deferred(1), deferred(2), deferred(4)), conformance_name);

}  // namespace tributary::testing_support
