// Rounds whose items are at different layers: the same bits as steps in which all move together.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

class PoolRound : public testing::TestWithParam<Exchange> {
 protected:
  PoolRound() {
    setup_.workers = 3;
    setup_.layers = 5;
    setup_.spread = SpreadPolicy::kAll;
    setup_.exchange = GetParam();
    setup_.backend = [](int) { return make_cpu_backend({}); };
  }

  /// Single tokens, all sequences at one layer.
  PoolOutputs in_step(const std::vector<PoolRequest>& requests) {
    PoolSetup setup = setup_;
    setup.accept = nullptr;
    setup.hook = nullptr;
    return run_pool(setup, [&](PoolLeader& leader) { leader.decode(requests, {}); }).outputs;
  }

  PoolSetup setup_;
};

/// Every sequence goes through its steps by itself: a random part of them moves on by one layer in
/// every round.
void decode_apart(PoolLeader& leader, const std::vector<PoolRequest>& requests, int layers,
                  std::uint32_t seed) {
  std::mt19937 random(seed);
  std::map<SequenceId, std::int32_t> layer;
  for (const PoolRequest& request : requests) layer.emplace(leader.admit(request).value(), 0);
  int mixed = 0;
  while (!layer.empty()) {
    std::vector<StepItem> items;
    for (const auto& [id, next] : layer) {
      if (random() % 3 == 0) continue;
      const Sequence& s = leader.sequencer.ledger().table().at(id);
      if (leader.sequencer.steps().open_tokens(id) == 0) {
        const auto tokens = std::min<std::int64_t>(1 + random() % 6, s.limit_tokens - s.length);
        leader.sequencer.steps().open(
            std::vector<StepItem>{{id, static_cast<std::int32_t>(tokens)}});
      }
      items.push_back({id, 0, next});
    }
    if (items.empty()) continue;
    std::shuffle(items.begin(), items.end(), random);
    mixed += items.front().layer != items.back().layer ? 1 : 0;
    (void)leader.round(items);
    for (const auto& item : items) {
      if (++layer[item.id] < layers) continue;
      layer[item.id] = 0;
      leader.commit(item.id);
      const Sequence& s = leader.sequencer.ledger().table().at(item.id);
      if (s.length < s.limit_tokens) continue;
      leader.sequencer.sequences().free(item.id);
      layer.erase(item.id);
    }
  }
  EXPECT_GT(mixed, 20);
}

TEST_P(PoolRound, LayersApartGiveTheSameBits) {
  const std::vector<PoolRequest> requests{{1, 60, 30}, {2, 127, 20}, {3, 0, 25}, {4, 330, 9}};
  const auto outputs = run_pool(setup_, [&](PoolLeader& leader) {
                         decode_apart(leader, requests, setup_.layers, 1);
                       }).outputs;
  EXPECT_EQ(differing_outputs(outputs, in_step(requests)), 0U);
}

TEST_P(PoolRound, ARoundMayBeRunAgain) {
  std::atomic<bool> fail_once = false;
  setup_.hook = [&](int rank, std::string_view call) {
    if (rank == 1 && call == "append" && fail_once.exchange(false)) {
      fail(ErrorCode::kIo, "planted");
    }
  };
  const PoolRequest request{1, 150, 8};
  const auto outputs =
      run_pool(setup_, [&](PoolLeader& leader) {
        const auto id = leader.admit(request).value();
        const auto other = leader.admit({2, 10, 1}).value();
        while (leader.sequencer.ledger().table().at(id).length < 158) {
          leader.sequencer.steps().open(std::vector<StepItem>{{id, 4}});
          for (std::int32_t layer = 0; layer < setup_.layers; ++layer) {
            leader.set_salt(500);  // a client sends wrong rows first, then sends them again
            (void)leader.round({{id, 0, layer}});
            leader.set_salt(0);
            fail_once = layer == 3;
            // The rank that fails may own none of the four rows.
            const ErrorCode code = code_of([&] { (void)leader.round({{id, 0, layer}}); });
            EXPECT_TRUE(code == ErrorCode::kOk || code == ErrorCode::kWorkerFailed);
            fail_once = false;
            if (code != ErrorCode::kOk) (void)leader.round({{id, 0, layer}});
          }
          leader.commit(id);
        }
        leader.sequencer.sequences().free(other);
      }).outputs;
  EXPECT_EQ(differing_outputs(outputs, in_step({request})), 0U);
}

TEST_P(PoolRound, ThePlanIsKeptUntilTheTableOrTheItemsChange) {
  (void)run_pool(setup_, [&](PoolLeader& leader) {
    const auto a = leader.admit({1, 70, 30}).value();
    const auto b = leader.admit({2, 200, 30}).value();
    const auto reused = [&](const std::vector<StepItem>& items) {
      return leader.round(items).plan_reused;
    };
    leader.sequencer.steps().open(std::vector<StepItem>{{a, 2}, {b, 1}});
    EXPECT_FALSE(reused({{a, 0, 0}, {b, 0, 0}}));
    EXPECT_TRUE(reused({{a, 0, 1}, {b, 0, 1}}));
    EXPECT_TRUE(reused({{a, 0, 2}, {b, 0, 4}})) << "layers are not part of a plan";
    EXPECT_FALSE(reused({{b, 0, 2}, {a, 0, 3}}));
    EXPECT_FALSE(reused({{a, 0, 3}}));
    const auto c = leader.admit({3, 5, 5}).value();
    EXPECT_TRUE(reused({{a, 0, 4}})) << "another sequence does not matter";
    leader.sequencer.steps().commit(a, 1);
    leader.sequencer.steps().open(std::vector<StepItem>{{a, 2}});
    EXPECT_FALSE(reused({{a, 0, 0}})) << "it has grown";
    EXPECT_TRUE(reused({{a, 0, 1}}));
    leader.sequencer.steps().commit(a, 0);
    leader.sequencer.steps().open(std::vector<StepItem>{{a, 2}});
    EXPECT_TRUE(reused({{a, 0, 0}})) << "nothing has changed";
    leader.sequencer.steps().commit(a, 0);
    leader.sequencer.sequences().truncate(a, 10);
    EXPECT_TRUE(leader.lead().status.ok());  // the change and the round in orders of their own
    leader.sequencer.steps().open(std::vector<StepItem>{{a, 2}});
    EXPECT_FALSE(reused({{a, 0, 0}}));
    leader.sequencer.steps().commit(a, 0);
    leader.sequencer.steps().commit(b, 0);
    for (const SequenceId id : {a, b, c}) leader.sequencer.sequences().free(id);
  });
}

TEST_P(PoolRound, WhatIsNoRoundIsRefusedByAllAndThePoolGoesOn) {
  const auto statuses =
      run_pool(setup_, [&](PoolLeader& leader) {
        const auto id = leader.admit({1, 70, 30}).value();
        leader.sequencer.steps().open(std::vector<StepItem>{{id, 1}});
        const auto lead = [&](const auto& change) {
          leader.sequencer.steps().order_round(std::vector<StepItem>{{id, 0}});
          Order order = leader.sequencer.take_order();
          change(order);
          const RoundReport report = leader.lead(order);
          EXPECT_EQ(report.status.code(), ErrorCode::kWorkerFailed);
          EXPECT_EQ(report.rounds, 0);
          return report.status.message();
        };
        EXPECT_NE(lead([](Order& o) { o.step[0].layer = 5; }).find("expected 0 .. 4"),
                  std::string::npos);
        (void)lead([](Order& o) { o.step[0].layer = -1; });
        (void)lead([](Order& o) { o.canary = {1, 0}; });
        (void)lead([](Order& o) { o.canary = {0, 3}; });
        (void)lead([](Order& o) { o.canary = {0, -1}; });
        EXPECT_EQ(leader.round({{id, 0, 4}}).rounds, 1);
      }).statuses;
  for (const auto& of_rank : statuses) ASSERT_EQ(of_rank.size(), statuses[0].size());
}

TEST_P(PoolRound, AStateThatNobodyReadFailsTheNextOrder) {
  std::atomic<bool> fail_once = false;
  setup_.hook = [&](int, std::string_view call) {
    if (call == "read_states" && fail_once.exchange(false)) fail(ErrorCode::kIo, "planted");
  };
  (void)run_pool(setup_, [&](PoolLeader& leader) {
    const auto id = leader.admit({1, 70, 30}).value();
    leader.sequencer.steps().open(std::vector<StepItem>{{id, 1}});
    fail_once = true;
    EXPECT_TRUE(leader.round({{id, 0}}).status.ok());
    const RoundReport next = leader.lead();  // nothing but the agreement
    EXPECT_EQ(next.status.code(), ErrorCode::kWorkerFailed);
    EXPECT_NE(next.status.message().find("planted"), std::string::npos);
    EXPECT_TRUE(leader.round({{id, 0}}).status.ok());
  });
}

INSTANTIATE_TEST_SUITE_P(, PoolRound, testing::Values(Exchange::kAllGather, Exchange::kAllToAll),
                         [](const auto& info) {
                           return info.param == Exchange::kAllGather ? "AllGather" : "AllToAll";
                         });

}  // namespace
}  // namespace tributary
