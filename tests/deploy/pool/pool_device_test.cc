// Pools whose backends have memory that the host cannot read: the same bits through their own
// communicator, and a clear error if there is none.
#include <gtest/gtest.h>

#include <memory>

#include "comm/local/run_ranks.h"
#include "core/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/interface/remote_backend.h"
#include "tests/core/round/idle_client.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

PoolOutputs decode(PoolSetup setup, bool remote) {
  setup.backend = [remote](int /*rank*/) -> std::unique_ptr<Backend> {
    auto backend = make_cpu_backend({});
    if (!remote) return backend;
    return std::make_unique<test::RemoteBackend>(std::move(backend));
  };
  return run_pool(setup, [](PoolLeader& leader) { leader.decode(border_requests(), {}); }).outputs;
}

TEST(PoolDevice, MemoryThatTheHostCannotReadGivesTheSameBits) {
  const PoolOutputs expected = decode({}, /*remote=*/false);
  ASSERT_FALSE(expected.empty());
  for (const int workers : {1, 2, 3}) {
    for (const Exchange exchange : {Exchange::kAllGather, Exchange::kAllToAll}) {
      PoolSetup setup;
      setup.workers = workers;
      setup.spread = SpreadPolicy::kAll;
      setup.exchange = exchange;
      EXPECT_EQ(differing_outputs(expected, decode(setup, /*remote=*/true)), 0U)
          << workers << " workers, " << exchange_name(exchange);
    }
  }
}

TEST(PoolDevice, WithoutAnExchangeItIsRefused) {
  run_ranks(1, [](Communicator& communicator) {
    test::RemoteBackend backend(make_cpu_backend({}));
    IdleClient client;
    const WorkerConfig config{
        .attention = {.heads = 1, .kv_lora_rank = 8, .qk_rope_head_dim = 8, .softmax_scale = 1},
        .pages = 1};
    IngestTable ingest(0, config.layers, config.leaf_tokens);
    EXPECT_EQ(code_of([&] { const Worker worker(config, backend, communicator, client, ingest); }),
              ErrorCode::kFailedPrecondition);
  });
}

}  // namespace
}  // namespace tributary
