// A pool whose workers compute on devices of their own and exchange with NCCL on the backend's
// stream, both emulated (tests/kernels/cuda/runtime, tests/comm/nccl/emulated): rounds that are
// enqueued as a whole, with replayed graphs between the exchanges.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>

#include "comm/nccl/nccl_communicator.h"
#include "core/base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/comm/nccl/emulated/emulated_nccl.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/pool/pool_harness.h"
#include "tests/kernels/cuda/runtime/emulated_device.h"

namespace tributary {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class PoolNccl : public testing::Test {
 protected:
  void SetUp() override {
    test::set_device_count(4);
    before_ = test::device_objects();
  }
  void TearDown() override {
    EXPECT_EQ(test::device_fault(), "");
    EXPECT_EQ(test::nccl_misuse(), "");
    EXPECT_EQ(test::live_communicators(), 0U);
    EXPECT_EQ(test::device_objects(), before_);
    test::set_device_count(1);
  }

 private:
  test::DeviceObjects before_;
};

PoolSetup pool_of(int workers, Exchange exchange) {
  PoolSetup setup;
  setup.workers = workers;
  setup.pages = 16;
  setup.spread = workers == 1 ? SpreadPolicy::kSingle : SpreadPolicy::kAll;
  setup.exchange = exchange;
  setup.backend = [](int rank) { return make_cuda_backend({.device = rank}); };
  setup.connect = [](Backend& backend, Communicator& communicator) {
    return make_nccl_communicator(communicator, communicator.rank(), Deadline::after(60s),
                                  cuda_stream(backend));
  };
  return setup;
}

/// Lengths across the borders of leaves of 64, and a sequence that begins empty.
PoolOutputs decode(const PoolSetup& setup) {
  return run_pool(setup,
                  [](PoolLeader& leader) {
                    leader.decode({{1, 0, 4}, {2, 190, 8}, {3, 70, 6}}, {});
                  })
      .outputs;
}

/// With more calls between the exchanges, of each layer's weights.
TEST_F(PoolNccl, BitsAreThoseOfOneRankOverBothExchangesWithGraphsAndWithout) {
  PoolSetup alone = pool_of(1, Exchange::kAuto);
  alone.connect = nullptr;  // through the host
  const PoolOutputs expected = decode(alone);
  ASSERT_EQ(expected.size(), 2U * 18U);
  for (const int workers : {2, 4}) {
    for (const Exchange exchange : {Exchange::kAllGather, Exchange::kAllToAll}) {
      SCOPED_TRACE(testing::Message() << workers << " workers, " << exchange_name(exchange));
      const auto device = test::device_counters();
      const auto nccl = test::nccl_counters();
      EXPECT_EQ(differing_outputs(expected, decode(pool_of(workers, exchange))), 0U);
      EXPECT_GT(test::device_counters().graph_launches, device.graph_launches);
      EXPECT_GT(test::nccl_counters().transfers, nccl.transfers);
      EXPECT_EQ(test::nccl_counters().aborted, nccl.aborted);
    }
  }
  PoolSetup plain = pool_of(2, Exchange::kAllToAll);
  plain.backend = [](int rank) { return make_cuda_backend({.device = rank, .graphs = false}); };
  const auto before = test::device_counters().graph_launches;
  EXPECT_EQ(differing_outputs(expected, decode(plain)), 0U);
  EXPECT_EQ(test::device_counters().graph_launches, before);
}

TEST_F(PoolNccl, OneRankAloneMayUseItToo) {
  PoolSetup alone = pool_of(1, Exchange::kAuto);
  alone.connect = nullptr;
  EXPECT_EQ(differing_outputs(decode(alone), decode(pool_of(1, Exchange::kAuto))), 0U);
}

/// Two ranks may come to the same deadline, each after a time of its own.
std::string without_time(const std::string& message) {
  return message.substr(0, message.find(", after "));
}

/// Expects the same status on all ranks, long before their deadlines.
void expect_end(const PoolResult& result, ErrorCode code, std::string_view words) {
  for (const auto& statuses : result.statuses) {
    ASSERT_FALSE(statuses.empty());
    EXPECT_EQ(statuses.back().code(), code) << statuses.back().message();
    EXPECT_EQ(without_time(statuses.back().message()),
              without_time(result.statuses[0].back().message()));
    EXPECT_NE(statuses.back().message().find(words), std::string::npos)
        << statuses.back().message();
  }
}

struct Planted {
  std::string function;
  int rank = 0;
  int n = 1;
};

TEST_F(PoolNccl, ACollectiveThatFailsInTheMiddleEndsThePoolOnAllRanks) {
  for (const Planted& planted :
       {Planted{"ncclSend", 1, 1}, Planted{"ncclRecv", 2, 5}, Planted{"ncclSend", 0, 12},
        Planted{"ncclCommGetAsyncError", 1, 9}, Planted{"ncclCommGetAsyncError", 2, 40}}) {
    SCOPED_TRACE(testing::Message() << planted.function << ' ' << planted.rank);
    const auto begin = Clock::now();
    PoolSetup setup = pool_of(3, Exchange::kAllToAll);
    const PoolResult result = run_pool(setup, [&](PoolLeader& leader) {
      const auto a = leader.admit({1, 300, 40}).value();
      (void)leader.step({{a, 1}});
      test::fail_nccl_call(planted.function, planted.rank, planted.n, ncclSystemError);
      EXPECT_EQ(code_of([&] {
                  for (int i = 0; i < 39; ++i) (void)leader.step({{a, 1}});
                }),
                ErrorCode::kCommunicatorPoisoned);
    });
    EXPECT_FALSE(test::nccl_failure_is_due(planted.function, planted.rank));
    expect_end(result, ErrorCode::kCommunicatorPoisoned, "unhandled system error: planted");
    EXPECT_LT(Clock::now() - begin, setup.timeout);
  }
}

TEST_F(PoolNccl, AnErrorOfTheNetworkEndsThePoolOnAllRanks) {
  for (const Exchange exchange : {Exchange::kAllGather, Exchange::kAllToAll}) {
    PoolSetup setup = pool_of(3, exchange);
    std::atomic<int> attends = 0;
    setup.hook = [&](int rank, std::string_view call) {
      if (rank == 2 && call == "attend" && ++attends == 1) {
        test::fail_communicators(2, ncclRemoteError);
      }
    };
    const PoolResult result = run_pool(setup, [&](PoolLeader& leader) {
      const auto a = leader.admit({1, 300, 4}).value();
      EXPECT_EQ(code_of([&] { (void)leader.step({{a, 1}}); }), ErrorCode::kCommunicatorPoisoned);
    });
    expect_end(result, ErrorCode::kCommunicatorPoisoned, "network error");
  }
}

}  // namespace
}  // namespace tributary
