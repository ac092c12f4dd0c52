// The canary: close to served results that are right, far from those with a planted error.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/pool/planted_error.h"
#include "tests/deploy/pool/pool_harness.h"

namespace tributary {
namespace {

PoolSetup canary_setup(int workers) {
  PoolSetup setup;
  setup.workers = workers;
  setup.layers = 3;
  setup.spread = SpreadPolicy::kAll;
  setup.backend = [](int) { return make_cpu_backend({}); };
  return setup;
}

/// Leads `rounds` rounds of two sequences at layers of their own, each with a canary of another
/// item and head.
std::vector<RoundReport> canaries(PoolLeader& leader, const PoolSetup& setup, int rounds) {
  std::vector<RoundReport> reports;
  const auto a = leader.admit({1, 63, 60}).value();
  const auto b = leader.admit({2, 500, 60}).value();
  leader.sequencer.steps().open(std::vector<StepItem>{{a, 5}, {b, 2}});
  for (int i = 0; i < rounds; ++i) {
    reports.push_back(leader.round({{a, 0, i % setup.layers}, {b, 0, (i + 1) % setup.layers}},
                                   {i % 2, i % setup.shape.heads}));
  }
  return reports;
}

TEST(PoolCanary, IsNearWhatIsServed) {
  for (const auto& [row, query] :
       {std::pair(RowFormat::kBF16, DType::kBF16), std::pair(RowFormat::kBF16, DType::kF32),
        std::pair(RowFormat::kF32, DType::kF32)}) {
    for (const int workers : {1, 2, 4}) {
      for (const Exchange exchange : {Exchange::kAllGather, Exchange::kAllToAll}) {
        PoolSetup setup = canary_setup(workers);
        setup.exchange = exchange;
        setup.shape.row_format = row;
        setup.shape.query_dtype = query;
        if (workers == 2) setup.backend = [](int) { return make_reference_backend(); };
        const double bound = query == DType::kF32 ? 1e-5 : 1e-2;
        (void)run_pool(setup, [&](PoolLeader& leader) {
          for (const RoundReport& report : canaries(leader, setup, 12)) {
            EXPECT_TRUE(report.canary_checked);
            EXPECT_LT(report.canary_error, bound) << workers << " workers";
          }
        });
      }
    }
  }
}

TEST(PoolCanary, OfTheFirstTokenOfAnEmptySequence) {
  const PoolSetup setup = canary_setup(2);
  (void)run_pool(setup, [&](PoolLeader& leader) {
    const auto id = leader.admit({1, 0, 4}).value();
    leader.sequencer.steps().open(std::vector<StepItem>{{id, 3}});
    const RoundReport report = leader.round({{id, 0}}, {0, 2});
    EXPECT_TRUE(report.canary_checked);
    EXPECT_LT(report.canary_error, 1e-5) << "one row: itself";
  });
}

TEST(PoolCanary, NobodyAskedForIsNotThere) {
  const PoolSetup setup = canary_setup(2);
  (void)run_pool(setup, [&](PoolLeader& leader) {
    const auto id = leader.admit({1, 100, 4}).value();
    EXPECT_FALSE(leader.step({{id, 1}}).canary_checked);
    leader.sequencer.steps().open(std::vector<StepItem>{{id, 1}});
    EXPECT_TRUE(leader.round({{id, 0}}, {0, 0}).canary_checked);
    EXPECT_FALSE(leader.round({{id, 0, 1}}).canary_checked) << "that of the round before";
  });
}

TEST(PoolCanary, DetectsAPlantedError) {
  struct Plant {
    const char* name;
    PlantedError change;
  };
  const std::vector<Plant> plants{
      {"o", scale_outputs},
      {"lse",
       [](float* state, const StateShape& shape) {
         for (int h = 0; h < shape.heads; ++h) state[shape.heads * shape.width + h] += 0.5F;
       }},
      {"NaN",
       [](float* state, const StateShape&) {
         for (int i = 0; i < 1000; ++i) state[i % 24] = std::numeric_limits<float>::quiet_NaN();
       }},
  };
  for (const Plant& plant : plants) {
    for (const int workers : {1, 2, 4}) {
      const RoundReport report = round_with_error(canary_setup(workers), plant.change);
      EXPECT_TRUE(report.canary_checked);
      EXPECT_GT(report.canary_error, 1e-2) << plant.name << ", " << workers << " workers";
    }
  }
}

TEST(PoolCanary, DoesNotReadMoreRowsThanItMay) {
  PoolSetup setup = canary_setup(2);
  setup.change = [](int, WorkerConfig& config) { config.canary_rows = 200; };
  (void)run_pool(setup, [&](PoolLeader& leader) {
    const auto id = leader.admit({1, 330, 200}).value();
    while (leader.sequencer.ledger().table().at(id).length < 450) {
      leader.sequencer.steps().open(std::vector<StepItem>{{id, 15}});
      const Sequence& s = leader.sequencer.ledger().table().at(id);
      std::vector<std::int64_t> rows(2, 0);
      for (std::int64_t p = 0; p <= s.length; ++p) {
        ++rows[static_cast<std::size_t>(s.leaves[static_cast<std::size_t>(p / 64)].owner)];
      }
      EXPECT_EQ(leader.round({{id, 0}}, {0, 0}).canary_checked, rows[0] <= 200 && rows[1] <= 200);
      leader.commit(id);
    }
  });
}

TEST(PoolCanary, ThatFailsFailsTheRoundAndThePoolGoesOn) {
  PoolSetup setup = canary_setup(2);
  std::atomic<bool> fail_once = true;
  setup.hook = [&](int rank, std::string_view call) {
    if (rank == 1 && call == "load_rows" && fail_once.exchange(false)) {
      fail(ErrorCode::kIo, "planted");
    }
  };
  (void)run_pool(setup, [&](PoolLeader& leader) {
    const auto id = leader.admit({1, 330, 4}).value();
    leader.sequencer.steps().open(std::vector<StepItem>{{id, 1}});
    EXPECT_EQ(code_of([&] { (void)leader.round({{id, 0}}, {0, 0}); }), ErrorCode::kWorkerFailed);
    const RoundReport report = leader.round({{id, 0}}, {0, 0});
    EXPECT_TRUE(report.canary_checked);
    EXPECT_LT(report.canary_error, 1e-5);
  });
}

}  // namespace
}  // namespace tributary
