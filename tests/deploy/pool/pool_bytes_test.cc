// The bytes that a pool exchanges, as its own rounds planned them, as `plan` and `simulate` predict
// them, and beside the least that its placement needs.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/cache/leaves.h"
#include "core/cost/least_exchange.h"
#include "core/placement/pool_load.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

struct Records {
  std::int64_t tokens = 0, states = 0;

  friend bool operator==(const Records&, const Records&) = default;
};

/// As `plan` counts them.
Records of_plan(const Routing& routing, int workers, Exchange exchange) {
  const ExchangeVolume volume = exchange_volume(routing, workers, exchange);
  return {volume.token_records, volume.state_records};
}

/// As `simulate` counts them, which has no plan.
Records of_load(const Routing& routing, const CostModelConfig& model, int workers,
                Exchange exchange) {
  PoolLoad load(workers, model, 0);
  for (const Routing::Item& item : routing.items) {
    std::vector<LeafRun> runs;
    for_each_owner_run(*item.sequence, ceil_div(item.rows, std::int64_t{model.leaf_tokens}),
                       [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
                         runs.push_back({owner, begin, end});
                       });
    load.add(runs, item.home, item.rows);
  }
  const RoundPrices prices(model, workers);
  Records records;
  for (std::int32_t w = 0; w < workers; ++w) {
    const Inbound queries = load.exchange().queries(w, exchange, prices);
    const Inbound states = load.exchange().states(w, exchange, prices);
    records.tokens += queries.near + queries.far;
    records.states += states.near + states.far;
  }
  return records;
}

class PoolBytes : public testing::TestWithParam<std::tuple<Exchange, int, int>> {};

TEST_P(PoolBytes, AreThePlannedOnesBesideTheLeast) {
  const Exchange exchange = std::get<0>(GetParam());
  const int workers = std::get<1>(GetParam());
  PoolSetup setup;
  setup.shape.topk = std::get<2>(GetParam());
  setup.workers = workers;
  setup.exchange = exchange;
  setup.spread = SpreadPolicy::kAll;
  setup.backend = [](int) { return make_cpu_backend({}); };
  CostModelConfig model = default_cost_model(setup.leaf_tokens);
  model.attention = setup.shape;
  std::uint64_t all = 0;
  (void)run_pool(setup, [&](PoolLeader& leader) {
    std::vector<StepItem> batch;
    for (const PoolRequest& request :
         {PoolRequest{1, 63, 8}, {2, 500, 8}, {3, 130, 8}, {4, 5, 8}, {5, 320, 8}}) {
      batch.push_back({leader.admit(request).value(), 1});
    }
    for (int step = 0; step < 6; ++step) {  // some open a leaf, which may be another worker's
      leader.sequencer.steps().open(batch);
      leader.sequencer.steps().order_round(batch);
      const Order order = leader.sequencer.take_order();
      Routing routing;
      build_routing(leader.sequencer.ledger().table(), order.step, workers, routing);
      const Records planned = of_plan(routing, workers, exchange);
      EXPECT_EQ(of_load(routing, model, workers, exchange), planned);
      const auto tokens = static_cast<std::uint64_t>(planned.tokens);
      const auto states = static_cast<std::uint64_t>(planned.states);
      const std::uint64_t state_bytes = states * setup.shape.state_shape().record_bytes();
      const std::uint64_t bytes = tokens * setup.shape.token_record_bytes() + state_bytes;
      const RoundReport report = leader.lead(order);
      ASSERT_TRUE(report.status.ok());
      EXPECT_EQ(report.exchanged_bytes, bytes);
      EXPECT_EQ(report.planned_bytes, bytes);
      EXPECT_EQ(report.state_bytes, state_bytes);
      const double least = least_exchange_bytes(routing, setup.shape);
      if (exchange == Exchange::kAllToAll) {
        EXPECT_EQ(static_cast<double>(bytes), least) << "a narrow exchange sends nothing twice";
      } else {
        EXPECT_GE(static_cast<double>(bytes), least);
      }
      all += report.exchanged_bytes;
      for (const auto& item : batch) leader.commit(item.id);
    }
  });
  EXPECT_EQ(all > 0, workers > 1);
}

INSTANTIATE_TEST_SUITE_P(, PoolBytes,
                         testing::Combine(testing::Values(Exchange::kAllToAll,
                                                          Exchange::kAllGather),
                                          testing::Values(1, 2, 4), testing::Values(0, 40)),
                         [](const auto& info) {
                           return (std::get<0>(info.param) == Exchange::kAllToAll ? "narrow_"
                                                                                  : "wide_") +
                                  std::to_string(std::get<1>(info.param)) +
                                  (std::get<2>(info.param) > 0 ? "_sparse" : "");
                         });

}  // namespace
}  // namespace tributary
