// Pools whose tokens attend to the rows that they select: one result for every pool, near float64,
// and that of a dense pool where everything is selected.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/reference/error_measures.h"
#include "tests/core/reference/reference_state.h"
#include "tests/deploy/pool/bits_backends.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

using Select = std::vector<std::int32_t> (*)(std::int64_t tag, int layer, std::int64_t position);
constexpr int kTopk = 40;

std::vector<std::int32_t> from(std::int64_t begin, std::int64_t end, std::int64_t step) {
  std::vector<std::int32_t> list;
  for (std::int64_t p = begin; p < end; p += step) list.push_back(static_cast<std::int32_t>(p));
  return list;
}

/// What a token selects; null: at random.
const std::vector<std::pair<std::string, Select>>& selections() {
  static const std::vector<std::pair<std::string, Select>> all{
      {"random", nullptr},
      {"none", [](std::int64_t, int, std::int64_t) { return std::vector<std::int32_t>{}; }},
      {"its own row",
       [](std::int64_t, int, std::int64_t position) { return from(position, position + 1, 1); }},
      {"the newest",
       [](std::int64_t, int, std::int64_t position) {
         return from(std::max<std::int64_t>(0, position + 1 - kTopk), position + 1, 1);
       }},
      {"one a page",
       [](std::int64_t tag, int, std::int64_t position) {
         return from(tag % kPageTokens, position + 1, kPageTokens);
       }},
      {"of one leaf", [](std::int64_t, int layer, std::int64_t position) {
         const std::int64_t leaf = layer == 0 ? 0 : position / kPageTokens;
         return from(leaf * kPageTokens, std::min(position + 1, leaf * kPageTokens + kTopk), 1);
       }}};
  return all;
}

using StepTokens = std::int32_t (*)(std::int64_t tag, std::int64_t step);

PoolOutputs decode(const PoolSetup& setup, int max_batch = 1000, StepTokens tokens = mixed_tokens) {
  return run_pool(setup,
                  [&](PoolLeader& leader) {
                    leader.decode(border_requests(), {.max_batch = max_batch, .tokens = tokens});
                  })
      .outputs;
}

std::int32_t one_a_step(std::int64_t /*tag*/, std::int64_t /*step*/) {
  return 1;
}
std::int32_t four_a_step(std::int64_t /*tag*/, std::int64_t /*step*/) {
  return 4;
}

class PoolSelected : public testing::TestWithParam<std::string> {
 protected:
  static PoolSetup setup(int workers, SpreadPolicy spread, int topk = kTopk) {
    PoolSetup setup;
    setup.workers = workers;
    setup.spread = spread;
    use_backend(setup, GetParam(), 1);
    setup.shape.topk = topk;
    return setup;
  }
};

TEST_P(PoolSelected, BitsAreTheSameForEveryPool) {
  const auto batches = {1, 2, 5, 1000};
  const auto steps = {one_a_step, mixed_tokens, four_a_step};
  for (const auto& [name, select] : selections()) {
    PoolSetup alone = setup(1, SpreadPolicy::kSingle);
    alone.select = select;
    const PoolOutputs expected = decode(alone, 1, one_a_step);
    std::size_t number = 0;
    for (const int workers : {1, 2, 3, 4, 8}) {
      for (const SpreadPolicy spread :
           {SpreadPolicy::kSingle, SpreadPolicy::kAll, SpreadPolicy::kAuto}) {
        PoolSetup many = setup(workers, spread);
        use_backend(many, GetParam(), 1 + static_cast<int>(number % 2));
        many.exchange = number / 2 % 2 == 0 ? Exchange::kAllGather : Exchange::kAllToAll;
        many.select = select;
        const int batch = *(batches.begin() + number % 4);
        EXPECT_EQ(differing_outputs(decode(many, batch, *(steps.begin() + number % 3)), expected),
                  0U)
            << name << ", " << workers << " workers, " << spread_policy_name(spread) << ", at most "
            << batch;
        ++number;
      }
    }
  }
}

TEST_P(PoolSelected, BitsAreTheSameWhateverUnusedMemoryHolds) {
  const PoolOutputs expected = decode(setup(1, SpreadPolicy::kSingle), 1, one_a_step);  // NaN there
  for (const float fill : {0.0F, 1e30F, -std::numeric_limits<float>::infinity()}) {
    PoolSetup filled = setup(2, SpreadPolicy::kAll);
    filled.page_fill = fill;
    EXPECT_EQ(differing_outputs(decode(filled), expected), 0U) << fill;
  }
  PoolSetup tight = setup(2, SpreadPolicy::kAll);
  tight.pages = 6;  // pages that others used
  EXPECT_EQ(differing_outputs(decode(tight), expected), 0U);
}

TEST_P(PoolSelected, EverythingSelectedGivesTheBitsOfADensePool) {
  const PoolOutputs dense = decode(setup(2, SpreadPolicy::kAll, 0));
  for (const int workers : {1, 3}) {
    EXPECT_EQ(differing_outputs(decode(setup(workers, SpreadPolicy::kAll, 1024)), dense), 0U);
  }
}

/// With leaves of 1,024 and pages in between, in the sizes of published models.
TEST_P(PoolSelected, BitsAreTheSameForSequencesBeyondTheirTopk) {
  constexpr int kPublished = 2048;
  const std::vector<PoolRequest> requests{{1, 2040, 12}, {2, 4095, 6}, {3, 5000, 4}};
  const auto newest = [](std::int64_t, int, std::int64_t position) {
    return from(std::max<std::int64_t>(0, position + 1 - kPublished), position + 1, 1);
  };
  for (const bool random : {true, false}) {
    PoolOutputs expected;
    for (const int workers : {1, 2, 4}) {
      PoolSetup many = setup(workers, SpreadPolicy::kAll, kPublished);
      many.leaf_tokens = 1024;
      many.pages = 256;
      if (!random) many.select = newest;
      const auto script = [&](PoolLeader& leader) {
        leader.decode(requests, {.tokens = mixed_tokens});
      };
      const PoolOutputs outputs = run_pool(many, script).outputs;
      if (workers == 1) expected = outputs;
      EXPECT_EQ(outputs.size(), 2U * 22U);
      EXPECT_EQ(differing_outputs(outputs, expected), 0U) << workers << " workers";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, PoolSelected, testing::ValuesIn(bits_backends()),
                         [](const auto& info) { return info.param; });

TEST(PoolSelectedRows, AreNearFloat64) {
  PoolSetup setup;
  setup.workers = 3;
  setup.spread = SpreadPolicy::kAll;
  setup.shape.topk = kTopk;
  const AttentionShape& shape = setup.shape;
  std::size_t checked = 0;
  for (const auto& [token, state] : decode(setup)) {
    const auto& [tag, layer, position] = token;
    if (position % 5 != 0) continue;
    std::vector<float> rows;
    for (const std::int32_t p : pool_selection(shape, tag, layer, position)) {
      if (p < 0) break;
      const auto row = pool_row(shape, tag, layer, p);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    const auto query = pool_query(shape, tag, layer, position);
    const ReferenceState expected = reference_attend(
        shape.heads, shape.kv_lora_rank, shape.qk_rope_head_dim,
        static_cast<double>(shape.softmax_scale), std::vector<double>(query.begin(), query.end()),
        std::vector<double>(rows.begin(), rows.end()));
    const std::vector<float> o(state.begin(), state.end() - shape.heads);
    const std::vector<float> lse(state.end() - shape.heads, state.end());
    EXPECT_LE(
        measure_error(std::span<const float>(o), expected.o, shape.kv_lora_rank).relative_frobenius,
        1e-6);
    EXPECT_LE(measure_error(std::span<const float>(lse), expected.lse, 1).max_absolute, 2e-6);
    ++checked;
  }
  EXPECT_GT(checked, 10U);
}

TEST(PoolSelectedRows, TheCanaryComputesTheSameSelection) {
  for (const auto& each : selections()) {
    PoolSetup setup;
    setup.workers = 2;
    setup.spread = SpreadPolicy::kAll;
    setup.shape.topk = kTopk;
    setup.select = each.second;
    (void)run_pool(setup, [&](PoolLeader& leader) {
      const auto id = leader.admit({1, 300, 4}).value();
      leader.sequencer.steps().open(std::vector<StepItem>{{id, 2}});
      for (int layer = 0; layer < setup.layers; ++layer) {
        const RoundReport report = leader.round({{id, 0, layer}}, {0, layer});
        EXPECT_TRUE(report.canary_checked) << each.first;
        EXPECT_LT(report.canary_error, 1e-5) << each.first;
      }
    });
  }
}

}  // namespace
}  // namespace tributary
