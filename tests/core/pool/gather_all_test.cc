// Values of every rank land in its slot, also where ranks are absent.
#include "core/pool/gather_all.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "comm/local/run_ranks.h"

namespace tributary {
namespace {

Deadline soon() {
  return Deadline::after(std::chrono::seconds(60));
}

/// Runs `body` on each of `members`, out of `ranks`, in a communicator of those alone.
void run_members(int ranks, const std::vector<int>& members,
                 const std::function<void(Communicator&)>& body) {
  run_ranks(ranks, [&](Communicator& whole) {
    if (std::ranges::find(members, whole.rank()) == members.end()) return;
    body(*whole.survivors(members, 1));
  });
}

// Absent first, in the middle, last; several; none.
class GatherAll : public testing::TestWithParam<std::vector<int>> {};

TEST_P(GatherAll, PutsValuesIntoTheSlotsOfTheirRanks) {
  constexpr int kRanks = 5;
  run_members(kRanks, GetParam(), [](Communicator& communicator) {
    const int rank = communicator.rank();
    const std::array<std::int64_t, 3> mine{rank + 100, rank + 200, rank + 300};
    // Used before: what it holds is of no account.
    std::vector<std::int64_t> all(20, -1);
    const std::span<const std::int64_t> values(mine);
    ASSERT_TRUE(gather_all(communicator, values, all, soon()).ok());
    std::vector<std::int64_t> expected(3 * kRanks, 0);
    for (const int member : GetParam()) {
      for (int i = 0; i < 3; ++i) {
        expected[static_cast<std::size_t>(3 * member + i)] = member + 100 * (i + 1);
      }
    }
    EXPECT_EQ(all, expected);
  });
}

TEST_P(GatherAll, AbsentRanksAreOkAndHaveNoValue) {
  run_members(5, GetParam(), [](Communicator& communicator) {
    const int last = GetParam().back();
    const Status own =
        communicator.rank() == last ? Status(ErrorCode::kPoolFull, "no page") : Status();
    std::vector<RankReport<int>> all;
    ASSERT_TRUE(gather_reports(communicator, own, 7, all, soon()).ok());
    ASSERT_EQ(all.size(), 5U);
    for (int rank = 0; rank < 5; ++rank) {
      const RankReport<int>& report = all[static_cast<std::size_t>(rank)];
      const bool takes_part = std::ranges::count(GetParam(), rank) > 0;
      EXPECT_EQ(report.ok(), rank != last) << rank;
      EXPECT_EQ(report.value, takes_part ? 7 : 0) << rank;
    }
    EXPECT_EQ(all[static_cast<std::size_t>(last)].status().message(), "no page");
  });
}

INSTANTIATE_TEST_SUITE_P(Members, GatherAll,
                         testing::Values(std::vector{0, 1, 2, 3, 4}, std::vector{1, 2, 3, 4},
                                         std::vector{0, 1, 3, 4}, std::vector{0, 1, 2, 3},
                                         std::vector{1, 4}, std::vector{0, 3}, std::vector{2}));

TEST(GatherValues, NamesAFailedWorkerByItsRank) {
  run_members(4, {1, 3}, [](Communicator& communicator) {
    const Status own =
        communicator.rank() == 3 ? Status(ErrorCode::kPoolFull, "no page") : Status();
    const Status end = status_of([&] { (void)gather_values(communicator, own, 7, soon()); });
    EXPECT_EQ(end.code(), ErrorCode::kPoolFull);
    EXPECT_EQ(end.message(), "worker 3: no page");
  });
}

}  // namespace
}  // namespace tributary
