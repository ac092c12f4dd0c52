// The staged communicator joins the conformance suite, over threads; then tests of its own. The
// memory is a CPU backend's, behind pointers that only the backend understands: host code that
// dereferences one crashes.
#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

#include "comm/local/run_ranks.h"
#include "comm/local/self_communicator.h"
#include "comm/staged/staged_communicator.h"
#include "kernels/reference/reference_backend.h"
#include "tests/comm/collective_check.h"
#include "tests/comm/communicator_conformance.h"
#include "tests/comm/device_buffers.h"
#include "tests/core/interface/remote_backend.h"

namespace tributary::testing_support {
namespace {

RankLauncher staged(int ranks) {
  return {"Staged" + std::to_string(ranks), ranks, [ranks](const auto& body) {
            run_ranks(ranks, [&](Communicator& host) {
              test::RemoteBackend backend(make_reference_backend());
              const auto exchange = make_staged_communicator(backend, host);
              DeviceBuffers communicator(backend, *exchange);
              body(communicator);
            });
          }};
}

TEST(StagedCommunicator, IsNamedAfterWhatItUses) {
  test::RemoteBackend backend(make_reference_backend());
  const auto self = make_self_communicator();
  EXPECT_EQ(make_staged_communicator(backend, *self)->name(), "staged/self");
}

TEST(StagedCommunicator, AFailureEndsBothCommunicators) {
  run_ranks(2, [](Communicator& host) {
    test::RemoteBackend backend(make_reference_backend());
    const auto exchange = make_staged_communicator(backend, host);
    if (host.rank() == 0) exchange->poison({ErrorCode::kIo, "out of ink"});
    std::byte byte{};
    EXPECT_EQ(host.broadcast({&byte, 1}, 0, ample_deadline()).code(), ErrorCode::kIo);
    const auto memory = backend.allocate(1);
    EXPECT_EQ(exchange->broadcast({memory->data(), 1}, 0, ample_deadline()).code(), ErrorCode::kIo);
  });
}

TEST(StagedCommunicator, ABackendThatFailsFailsTheCollectiveEverywhere) {
  run_ranks(2, [](Communicator& host) {
    test::RemoteBackend backend(make_reference_backend());
    const auto exchange = make_staged_communicator(backend, host);
    const auto memory = backend.allocate(2);
    if (host.rank() == 1) backend.fail_copies();
    const std::vector<std::size_t> counts{1, 1};
    const auto send = backend.allocate(1);
    const Status status =
        exchange->all_gather({send->data(), 1}, {memory->data(), 2}, counts, ample_deadline());
    EXPECT_EQ(status.code(), ErrorCode::kInternal) << status.message();
  });
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Staged, CommunicatorConformance,
                         testing::Values(staged(1), staged(2), staged(3), staged(4)),
                         conformance_name);

}  // namespace tributary::testing_support
