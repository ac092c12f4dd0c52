// Prompts pushed from outside: the same bits wherever they go, no step before they have arrived,
// and no page reused during a transfer.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

PoolSetup pushed(int workers) {
  PoolSetup setup;
  setup.workers = workers;
  setup.spread = SpreadPolicy::kAll;
  setup.pushed = true;
  setup.backend = [](int) { return make_cpu_backend({}); };
  return setup;
}

PoolOutputs on_one_worker(const std::vector<PoolRequest>& requests) {
  const PoolSetup setup = pushed(1);
  return run_pool(setup, [&](PoolLeader& leader) { leader.decode(requests, {}); }).outputs;
}

TEST(PoolIngest, PromptsGiveTheSameBitsOnAnyWorkers) {
  for (const int workers : {1, 2, 4}) {
    for (const std::int32_t pages : {96, 24 / workers}) {  // room for all; for a few at a time
      PoolSetup setup = pushed(workers);
      setup.pages = pages;
      const auto outputs = run_pool(setup, [&](PoolLeader& leader) {
                             leader.decode(border_requests(), {});
                             for (const PagePool& pool : leader.sequencer.ledger().pools()) {
                               EXPECT_EQ(pool.available(), pool.total());
                             }
                           }).outputs;
      EXPECT_EQ(differing_outputs(outputs, on_one_worker(border_requests())), 0U)
          << workers << " workers, " << pages << " pages";
    }
  }
}

TEST(PoolIngest, AStepBeforeTheRowsHaveArrivedIsAnError) {
  const PoolSetup setup = pushed(2);
  const PoolRequest request{1, 150, 4};
  const auto outputs =
      run_pool(setup, [&](PoolLeader& leader) {
        const auto id = leader.admit(request).value();
        const std::string message = message_of([&] { (void)leader.step({{id, 1}}); });
        EXPECT_NE(message.find("have not arrived"), std::string::npos) << message;
        EXPECT_NE(message.find("layer 0, position"), std::string::npos) << message;
        leader.sequencer.steps().open(std::vector<StepItem>{{id, 4}});
        EXPECT_EQ(code_of([&] { (void)leader.round({{id, 0}}); }), ErrorCode::kWorkerFailed);
        leader.push(id);
        for (std::int32_t layer = 0; layer < setup.layers; ++layer) {
          (void)leader.round({{id, 0, layer}});
        }
        leader.commit(id);
      }).outputs;
  EXPECT_EQ(differing_outputs(outputs, on_one_worker({request})), 0U);
}

TEST(PoolIngest, PagesUnderATransferAreNotUsedAgain) {
  PoolSetup setup = pushed(2);
  setup.pages = 4;
  const PoolRequest first{1, 500, 12};  // all pages
  const PoolRequest second{2, 400, 12};
  const auto outputs =
      run_pool(setup, [&](PoolLeader& leader) {
        const auto id = leader.admit(first).value();
        EXPECT_TRUE(leader.lead().status.ok());
        // For each rank, the first row of some leaf is in transit.
        std::vector<std::uint64_t> tickets;
        for (int rank = 0; rank < setup.workers; ++rank) {
          const Sequence& s = leader.sequencer.ledger().table().at(id);
          std::int64_t leaf = 0;
          while (s.leaves[static_cast<std::size_t>(leaf)].owner != rank) ++leaf;
          tickets.push_back(
              leader.receiver(rank).table->begin(id, 1, 0, leaf * setup.leaf_tokens, 1).ticket);
        }
        leader.sequencer.sequences().close(id);
        const auto lead = [&] {
          const RoundReport report = leader.lead();
          EXPECT_TRUE(report.status.ok());
          leader.sequencer.sequences().release_closed(report.drained_round);
        };
        for (const int rank : {1, 0}) {
          lead();
          EXPECT_EQ(leader.sequencer.sequences().closing(), 1U);
          EXPECT_EQ(leader.admit(second), std::nullopt);
          (void)leader.receiver(rank).table->end(tickets[static_cast<std::size_t>(rank)], true);
        }
        EXPECT_EQ(leader.admit(second), std::nullopt) << "nobody knows yet";
        lead();
        EXPECT_EQ(leader.sequencer.sequences().closing(), 0U);
        leader.decode({second}, {});
      }).outputs;
  EXPECT_EQ(differing_outputs(outputs, on_one_worker({second})), 0U);
}

TEST(PoolIngest, ATransferThatBeginsAfterTheReportIsNotMissed) {
  PoolSetup setup = pushed(1);
  setup.pages = 2;
  (void)run_pool(setup, [&](PoolLeader& leader) {
    const auto id = leader.admit({1, 100, 28}).value();
    const RoundReport before = leader.lead();
    EXPECT_EQ(before.drained_round, 1U) << "never more than the order's own round";
    leader.sequencer.sequences().close(id);
    const auto late = leader.receiver(0).table->begin(id, 1, 0, 0, 1);
    leader.sequencer.sequences().release_closed(before.drained_round);
    EXPECT_EQ(leader.sequencer.sequences().closing(), 1U);
    leader.sequencer.sequences().release_closed(leader.lead().drained_round);
    EXPECT_EQ(leader.sequencer.sequences().closing(), 1U);
    (void)leader.receiver(0).table->end(late.ticket, false);
    leader.sequencer.sequences().release_closed(leader.lead().drained_round);
    EXPECT_EQ(leader.sequencer.sequences().closing(), 0U);
  });
}

}  // namespace
}  // namespace tributary
