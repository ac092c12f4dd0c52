// NCCL joins the conformance suite, ranks as threads, one GPU each: as many ranks as there are
// GPUs; on a stream of its own and on the backend's.
#include "comm/nccl/nccl_communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "comm/local/run_ranks.h"
#include "comm/nccl/nccl_library.h"
#include "comm/staged/staged_communicator.h"
#include "core/base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_devices.h"
#include "tests/comm/collective_check.h"
#include "tests/comm/communicator_conformance.h"
#include "tests/comm/device_buffers.h"

namespace tributary::testing_support {
namespace {

/// On the backend's stream, or on one of its own.
RankLauncher nccl_ranks(int ranks, bool on_stream) {
  return {(on_stream ? "NcclOnStream" : "Nccl") + std::to_string(ranks), ranks,
          [ranks, on_stream](const auto& body) {
            run_ranks(ranks, [&](Communicator& bootstrap) {
              const int device = bootstrap.rank();
              const auto backend = make_cuda_backend({.device = device});
              const auto exchange = make_nccl_communicator(
                  bootstrap, device, ample_deadline(), on_stream ? cuda_stream(*backend) : nullptr);
              EXPECT_EQ(exchange->on_stream(), on_stream);
              // A case that poisons at once would end the start of ranks that are not ready yet.
              ASSERT_TRUE(bootstrap.broadcast(std::span<std::byte>(), 0, ample_deadline()).ok());
              DeviceBuffers communicator(*backend, *exchange);
              body(communicator);
            });
          },
          /*finds_mismatches=*/false, /*has_survivors=*/false};
}

RankLauncher staged_ranks(int ranks) {
  return {"StagedCuda" + std::to_string(ranks), ranks, [ranks](const auto& body) {
            run_ranks(ranks, [&](Communicator& host) {
              const auto backend = make_cuda_backend({});
              const auto exchange = make_staged_communicator(*backend, host);
              DeviceBuffers communicator(*backend, *exchange);
              body(communicator);
            });
          }};
}

std::vector<RankLauncher> launchers() {
  std::vector<RankLauncher> all{staged_ranks(1), staged_ranks(2), staged_ranks(4)};
  const auto devices = static_cast<int>(cuda_status().devices.size());
  for (const int ranks : {1, 2, 4, 8}) {
    if (ranks > devices) continue;
    all.push_back(nccl_ranks(ranks, /*on_stream=*/false));
    all.push_back(nccl_ranks(ranks, /*on_stream=*/true));
  }
  return all;
}

TEST(NcclCommunicator, LibraryIsThere) {
  EXPECT_EQ(nccl_status().problem, "");
  EXPECT_NE(nccl_status().version, "");
}

TEST(NcclCommunicator, TwoRanksOnOneDeviceAreRefusedOnBoth) {
  std::atomic<int> refused = 0;
  run_ranks(2, [&](Communicator& bootstrap) {
    const Status status = status_of([&] {
      (void)make_nccl_communicator(bootstrap, 0, Deadline::after(std::chrono::seconds(60)));
    });
    if (!status.ok()) ++refused;
    EXPECT_NE(status.message().find("nccl"), std::string::npos) << status.message();
  });
  EXPECT_EQ(refused, 2);
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Cuda, CommunicatorConformance, testing::ValuesIn(launchers()),
                         conformance_name);

}  // namespace tributary::testing_support
