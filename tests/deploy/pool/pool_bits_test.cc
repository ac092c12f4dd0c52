// One result, however it is computed: outputs compared bit by bit over workers, spreads, exchanges,
// batches, tokens per step, threads, and contents of unused memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/deploy/pool/bits_backends.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

using Tokens = std::int32_t (*)(std::int64_t tag, std::int64_t step);
std::int32_t one(std::int64_t /*tag*/, std::int64_t /*step*/) {
  return 1;
}
std::int32_t most(std::int64_t /*tag*/, std::int64_t /*step*/) {
  return kMaxStepTokens;
}
class PoolBits : public testing::TestWithParam<std::string> {
 protected:
  PoolSetup setup(int workers, SpreadPolicy spread, Exchange exchange, int threads = 1) {
    PoolSetup setup;
    setup.workers = workers;
    setup.spread = spread;
    setup.exchange = exchange;
    use_backend(setup, GetParam(), threads);
    return setup;
  }

  struct Run {
    PoolOutputs outputs;
    std::uint64_t exchanged_bytes = 0, state_bytes = 0;
  };
  static Run decode(const PoolSetup& setup, int max_batch, Tokens tokens) {
    Run run;
    run.outputs = run_pool(setup, [&](PoolLeader& leader) {
                    leader.decode(border_requests(), {.max_batch = max_batch, .tokens = tokens});
                    run.exchanged_bytes = leader.exchanged_bytes;
                    run.state_bytes = leader.state_bytes;
                    for (const PagePool& pool : leader.sequencer.ledger().pools()) {
                      EXPECT_EQ(pool.available(), pool.total());
                    }
                  }).outputs;
    return run;
  }

  PoolOutputs baseline() {
    return decode(setup(1, SpreadPolicy::kSingle, Exchange::kAllToAll), 1, one).outputs;
  }
};

TEST_P(PoolBits, AreTheSameForEveryPool) {
  const PoolOutputs expected = baseline();
  std::size_t tokens = 0;
  for (const PoolRequest& request : border_requests()) {
    tokens += static_cast<std::size_t>(request.max_new_tokens);
  }
  ASSERT_EQ(expected.size(), 2 * tokens) << "two layers";
  // Rarely used backends take part in half of the pools, with both exchanges in turn.
  const bool common = GetParam() == kReference || GetParam() == cpu_instruction_sets().front();
  int number = 0;
  for (const int workers : {1, 2, 3, 4, 8}) {
    for (const SpreadPolicy spread :
         {SpreadPolicy::kSingle, SpreadPolicy::kAll, SpreadPolicy::kAuto}) {
      for (const Exchange exchange : {Exchange::kAllGather, Exchange::kAllToAll}) {
        ++number;
        if (!common && number % 2 == workers % 2) continue;
        const Run run =
            decode(setup(workers, spread, exchange, 1 + number % 2), 1000, mixed_tokens);
        EXPECT_EQ(differing_outputs(run.outputs, expected), 0U)
            << workers << " workers, spread " << spread_policy_name(spread) << ", "
            << exchange_name(exchange);
        if (spread == SpreadPolicy::kSingle) {
          EXPECT_EQ(run.exchanged_bytes, 0U);
          EXPECT_EQ(run.state_bytes, 0U);
        } else if (spread == SpreadPolicy::kAll && workers > 1) {
          EXPECT_GT(run.state_bytes, 0U);
          EXPECT_GT(run.exchanged_bytes, run.state_bytes);
        }
      }
    }
  }
}

TEST_P(PoolBits, AreTheSameForEveryBatchAndStep) {
  const PoolOutputs expected = baseline();
  for (const int max_batch : {1, 2, 5, 1000}) {
    for (const Tokens tokens : {one, mixed_tokens, most}) {
      const Run run = decode(setup(3, SpreadPolicy::kAll, Exchange::kAuto, 2), max_batch, tokens);
      EXPECT_EQ(differing_outputs(run.outputs, expected), 0U) << "at most " << max_batch;
    }
  }
}

TEST_P(PoolBits, AreTheSameWhateverUnusedMemoryHolds) {
  const PoolOutputs expected = baseline();  // NaN there
  for (const float fill : {0.0F, 1e30F, -std::numeric_limits<float>::infinity()}) {
    PoolSetup filled = setup(2, SpreadPolicy::kAll, Exchange::kAllToAll);
    filled.page_fill = fill;
    EXPECT_EQ(differing_outputs(decode(filled, 1000, mixed_tokens).outputs, expected), 0U) << fill;
  }
}

TEST_P(PoolBits, AreTheSameInPagesThatOthersUsed) {
  const PoolOutputs expected = baseline();
  PoolSetup tight = setup(2, SpreadPolicy::kAll, Exchange::kAllGather);
  tight.pages = 6;  // 12 in all: 517 rows at the limit take 9
  const Run run = decode(tight, 1000, mixed_tokens);
  EXPECT_EQ(differing_outputs(run.outputs, expected), 0U);
}

INSTANTIATE_TEST_SUITE_P(, PoolBits, testing::ValuesIn(bits_backends()),
                         [](const auto& info) { return info.param; });

TEST(PoolBitsOfTypes, AreTheSameForOtherShapesAndTypes) {
  for (const auto& [row, query] :
       {std::pair(RowFormat::kF32, DType::kBF16), std::pair(RowFormat::kBF16, DType::kBF16),
        std::pair(RowFormat::kF32, DType::kF32)}) {
    for (const int leaf_tokens : {128, 256}) {
      std::vector<PoolOutputs> outputs;
      for (const int workers : {1, 3}) {
        PoolSetup setup;
        setup.workers = workers;
        setup.shape = {.heads = 5,
                       .kv_lora_rank = 72,
                       .qk_rope_head_dim = 16,
                       .row_format = row,
                       .query_dtype = query,
                       .softmax_scale = 0.1F};
        setup.layers = 1;
        setup.leaf_tokens = leaf_tokens;
        setup.spread = SpreadPolicy::kAll;
        setup.backend = [](int) { return make_cpu_backend({}); };
        outputs.push_back(run_pool(setup, [](PoolLeader& leader) {
                            leader.decode(border_requests(), {.tokens = mixed_tokens});
                          }).outputs);
      }
      EXPECT_EQ(differing_outputs(outputs[0], outputs[1]), 0U)
          << row_format_name(row) << " rows, " << dtype_name(query) << " queries";
    }
  }
}

}  // namespace
}  // namespace tributary
