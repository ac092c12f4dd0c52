// Which leases are renewed, and when, to the tick.
#include "deploy/service/client/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "core/interface/manual_clock.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPeriod{1'000};  // a third of a lease

SequenceHandle handle(SequenceId id, std::uint8_t token = 1, std::uint32_t epoch = 1) {
  SequenceHandle handle;
  handle.id = id;
  handle.token = {token};
  handle.epoch = epoch;
  handle.lease_ms = 3 * static_cast<int>(kPeriod.count());
  return handle;
}

class LeaseTableTest : public testing::Test {
 protected:
  /// Renews what is due next, with this answer. Returns the ids.
  std::vector<SequenceId> renew(ErrorCode code = ErrorCode::kOk) {
    if (!table_.next()) return {};
    clock_.advance(std::max(*table_.next() - clock_.now(), Duration{0}));
    const LeaseTable::Round round = table_.take_due(clock_.now());
    std::vector<SequenceId> ids;
    for (const LeaseTable::Renewal& renewal : round.due) {
      ids.push_back(renewal.sequence.id);
      table_.answered(renewal, code, renewal.sequence.home, round.began);
    }
    return ids;
  }
  [[nodiscard]] Duration until_next() const { return *table_.next() - clock_.now(); }

  ManualClock clock_;
  LeaseTable table_;
};

using testing::ElementsAre;
using testing::IsEmpty;

TEST_F(LeaseTableTest, ALeaseIsRenewedEachThirdOfIt) {
  EXPECT_EQ(table_.next(), std::nullopt);
  table_.keep(handle(1), clock_.now());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(until_next(), kPeriod);
    EXPECT_THAT(renew(), ElementsAre(1));
  }
}

TEST_F(LeaseTableTest, WhatIsDueWithinAFifthOfItsPeriodGoesAlong) {
  table_.keep(handle(1), clock_.now());
  clock_.advance(kPeriod / 5);
  table_.keep(handle(2), clock_.now());
  clock_.advance(milliseconds(1));
  table_.keep(handle(3), clock_.now());
  EXPECT_THAT(renew(), ElementsAre(1, 2));
  EXPECT_THAT(renew(), ElementsAre(3));
}

TEST_F(LeaseTableTest, ALeaseThatIsTakenOverIsRenewedAtOnceAndAloneUntilItIsConfirmed) {
  table_.take_over(handle(1), clock_.now());
  EXPECT_EQ(until_next(), Duration{0});
  for (const bool alone : {true, true, false}) {
    clock_.advance(until_next());
    const LeaseTable::Round round = table_.take_due(clock_.now());
    ASSERT_EQ(round.due.size(), 1U);
    EXPECT_EQ(round.due[0].alone, alone);
    EXPECT_EQ(round.patience, milliseconds(200));
    table_.answered(round.due[0], round.began == Time{} ? ErrorCode::kUnavailable : ErrorCode::kOk,
                    0, round.began);
  }
}

TEST_F(LeaseTableTest, ARenewalGoesWhereTheLastAnswerSaidThatTheHomeIs) {
  table_.keep(handle(1), clock_.now());
  for (const int home : {0, 2}) {
    clock_.advance(until_next());
    const LeaseTable::Round round = table_.take_due(clock_.now());
    ASSERT_EQ(round.due.size(), 1U);
    EXPECT_EQ(round.due[0].sequence.home, home);
    table_.answered(round.due[0], ErrorCode::kOk, 2, round.began);
  }
}

TEST_F(LeaseTableTest, WhatMayNotHaveArrivedComesAgainSooner) {
  table_.keep(handle(1), clock_.now());
  EXPECT_THAT(renew(ErrorCode::kDeadlineExceeded), ElementsAre(1));
  EXPECT_EQ(until_next(), kPeriod / 4);
}

TEST_F(LeaseTableTest, NobodyWaitsLongerForAnAnswerThanAPeriod) {
  SequenceHandle brief = handle(1);
  brief.lease_ms = 30;
  table_.keep(brief, clock_.now());
  table_.keep(handle(2), clock_.now());
  clock_.advance(milliseconds(10));
  EXPECT_EQ(table_.take_due(clock_.now()).patience, milliseconds(10));
}

TEST_F(LeaseTableTest, WhatAPoolDoesNotKnowIsForgotten) {
  for (const ErrorCode code :
       {ErrorCode::kNotFound, ErrorCode::kPoolLost, ErrorCode::kPermissionDenied}) {
    table_.keep(handle(1), clock_.now());
    EXPECT_THAT(renew(code), ElementsAre(1));
    EXPECT_EQ(table_.next(), std::nullopt);
  }
}

TEST_F(LeaseTableTest, AChangedHandleIsRenewedWithItsEpochIfItIsKept) {
  table_.update(handle(1, 1, 2));
  EXPECT_EQ(table_.next(), std::nullopt);
  table_.keep(handle(1), clock_.now());
  table_.update(handle(1, 1, 2));
  EXPECT_EQ(until_next(), kPeriod);
  clock_.advance(kPeriod);
  EXPECT_EQ(table_.take_due(clock_.now()).due.at(0).sequence.epoch, 2U);
}

TEST_F(LeaseTableTest, AForgottenLeaseIsRenewedNoLonger) {
  table_.keep(handle(1), clock_.now());
  table_.keep(handle(2), clock_.now());
  table_.forget(handle(1));
  EXPECT_THAT(renew(), ElementsAre(2));
  table_.forget(handle(2));
  EXPECT_THAT(renew(), IsEmpty());
}

TEST_F(LeaseTableTest, AHandleWithAnotherTokenIsAnothers) {
  table_.keep(handle(1), clock_.now());
  table_.take_over(handle(1, 9, 7), clock_.now());
  table_.update(handle(1, 9, 8));
  const LeaseTable::Round forged = table_.take_due(clock_.now());
  ASSERT_EQ(forged.due.size(), 1U);
  EXPECT_TRUE(forged.due[0].alone);
  EXPECT_EQ(forged.due[0].sequence.token[0], 9);
  table_.answered(forged.due[0], ErrorCode::kPermissionDenied, 0, forged.began);
  table_.forget(handle(1, 9, 9));
  EXPECT_EQ(until_next(), kPeriod) << "as if nothing had been";
  clock_.advance(kPeriod);
  const LeaseTable::Round own = table_.take_due(clock_.now());
  ASSERT_EQ(own.due.size(), 1U);
  EXPECT_EQ(own.due[0].sequence.token[0], 1);
  EXPECT_EQ(own.due[0].sequence.epoch, 1U);
}

TEST_F(LeaseTableTest, AHandleThatWasUsedUpChangesNothing) {
  table_.keep(handle(1, 1, 2), clock_.now());
  table_.take_over(handle(1, 1, 1), clock_.now());
  table_.update(handle(1, 1, 1));
  table_.forget(handle(1, 1, 1));
  EXPECT_EQ(until_next(), kPeriod);
  clock_.advance(kPeriod);
  EXPECT_EQ(table_.take_due(clock_.now()).due.at(0).sequence.epoch, 2U);
}

}  // namespace
}  // namespace tributary
