// Placement where the leaves are projected: exchanges are shorter, so a spread pays from shorter
// sequences on.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "core/cost/built_in_costs.h"
#include "core/placement/packing.h"
#include "core/placement/placement.h"

namespace tributary {
namespace {

/// DeepSeek-V3 on eight H200s, a node each: 400 Gbit/s between them.
Placement placement_of(ProjectAt place) {
  CostModelConfig model = default_cost_model(2048);
  model.costs = find_built_in_costs("h200").costs;
  model.layers = 61;
  model.workers_per_node = 1;
  model.attention.v_head_dim = 128;
  model.attention.project_at = place;
  if (place == ProjectAt::kLeaves) model.attention.qk_nope_head_dim = 128;
  return Placement({.workers = 8, .model = model});
}

/// Leaves of the shortest sequence that `auto` cuts on an empty pool.
std::int64_t cut_from(const Placement& placement) {
  const PoolLoad empty = placement.empty_load(std::int64_t{1} << 40);
  for (std::int64_t leaves = 2; leaves < 512; ++leaves) {
    const auto found =
        placement.place(leaves * 2048, leaves * 2048, SpreadPolicy::kAuto, empty).value();
    const auto [least, most] =
        std::minmax_element(found.leaf_owner.begin(), found.leaf_owner.end());
    if (*least != *most) return leaves;
  }
  return 512;
}

TEST(ProjectedPlacement, ASpreadPaysFromShorterSequencesOn) {
  const Placement home = placement_of(ProjectAt::kHome);
  const Placement leaves = placement_of(ProjectAt::kLeaves);
  const Inbound one{.near = 0, .far = 1, .near_messages = 0, .far_messages = 0};
  const auto bytes = [&](const Placement& placement) {
    const AttentionShape& shape = placement.prices().config().attention;
    return static_cast<double>(shape.state_shape().record_bytes());
  };
  EXPECT_NEAR(home.prices().states_us(one, Exchange::kAllToAll) /
                  leaves.prices().states_us(one, Exchange::kAllToAll),
              bytes(home) / bytes(leaves), 1e-12);
  EXPECT_NEAR(bytes(home) / bytes(leaves), 513.0 / 129, 1e-12);
  EXPECT_LT(cut_from(leaves), cut_from(home));
}

}  // namespace
}  // namespace tributary
