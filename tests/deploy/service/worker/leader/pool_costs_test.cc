#include "deploy/service/worker/leader/pool_costs.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "comm/local/run_ranks.h"
#include "core/base/error.h"
#include "core/cost/built_in_costs.h"

namespace tributary {
namespace {

constexpr std::chrono::seconds kPatient{60};

TEST(PoolCosts, NodesAreBlocksOfRanksOfOneHost) {
  using Hosts = std::vector<std::string_view>;
  EXPECT_EQ(workers_per_node(Hosts{"a"}), 1);
  EXPECT_EQ(workers_per_node(Hosts{"a", "a", "a"}), 3);
  EXPECT_EQ(workers_per_node(Hosts{"a", "a", "b", "b"}), 2);
  EXPECT_EQ(workers_per_node(Hosts{"a", "a", "b", "b", "c"}), 2);
  EXPECT_EQ(workers_per_node(Hosts{"a", "b", "a", "b"}), 1);
  EXPECT_EQ(workers_per_node(Hosts{"a", "b", "b"}), 1);
  EXPECT_EQ(workers_per_node(Hosts{"a", "a", "b", "c"}), 1);
}

TEST(PoolCosts, AllRanksTakeThoseOfRankZero) {
  run_ranks(3, [](Communicator& communicator) {
    const std::string name = communicator.rank() == 0 ? "h200" : "nobody reads this";
    const PoolCosts found = agree_on_costs(name, "host", communicator, Deadline::after(kPatient));
    EXPECT_EQ(found.costs.attend_byte_ns, find_built_in_costs("h200").costs.attend_byte_ns);
    EXPECT_EQ(found.workers_per_node, 3);
    EXPECT_NE(found.source.find("h200: built-in figures, NOT measured"), std::string::npos)
        << found.source;
  });
}

TEST(PoolCosts, AllRanksFailWithRankZero) {
  run_ranks(2, [](Communicator& communicator) {
    try {
      (void)agree_on_costs("/absent/machine.json", "host", communicator, Deadline::after(kPatient));
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("/absent/machine.json"), std::string::npos) << e.what();
    }
  });
}

}  // namespace
}  // namespace tributary
