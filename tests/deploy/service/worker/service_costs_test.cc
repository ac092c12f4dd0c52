// A pool goes on from what its last run learned of its constants.
#include <gtest/gtest.h>

#include <vector>

#include "tests/deploy/service/worker/service_pool.h"

namespace tributary::test {
namespace {

constexpr CostFactors kLearned{.attend = CostCorrection::kMost,
                               .exchange = CostCorrection::kLeast,
                               .combine = CostCorrection::kLeast};

/// Whether sequences of 128, 256 .. 4096 tokens are cut, each alone in a pool of 4 workers.
std::vector<bool> cuts(ServicePool& pool) {
  std::vector<bool> cut;
  for (std::int64_t tokens = 128; tokens <= 4096; tokens *= 2) {
    const SequenceInfo sequence = pool.admit(tokens, 1);
    cut.push_back(sequence.extents.size() > 1);
    pool.free(sequence.id);
  }
  return cut;
}

TEST(ServiceCosts, PlacementGoesByWhatTheLastRunLearned) {
  WorkerOptions options = small_options();
  options.correct_costs = true;
  ServicePool pool(4, options);
  const std::vector<bool> before = cuts(pool);
  pool.take_over(kLearned);
  EXPECT_EQ(pool.heartbeat().metrics.cost_factors, kLearned) << "the next heartbeat says so";
  // Attention is dearer and exchange cheaper: shorter sequences are cut.
  const std::vector<bool> after = cuts(pool);
  EXPECT_GT(after, before);
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(after[i] || !before[i]) << i;
}

TEST(ServiceCosts, WithoutTheFlagPlacementDoesNotChange) {
  ServicePool pool(4, small_options());
  const std::vector<bool> before = cuts(pool);
  pool.take_over(kLearned);
  EXPECT_EQ(pool.heartbeat().metrics.cost_factors, kLearned);
  EXPECT_EQ(cuts(pool), before);
}

}  // namespace
}  // namespace tributary::test
