// What the leader reads at a time, and what finds no room.
#include "deploy/service/worker/leader/leader_inbox.h"

#include <gtest/gtest.h>

#include "core/interface/manual_clock.h"

namespace tributary {
namespace {

class LeaderInboxTest : public testing::Test {
 protected:
  bool relay(int rank, std::size_t items, std::uint64_t ticket = 0) {
    wire::ControlRelay relay{.ticket = ticket, .items = {}};
    relay.items.resize(items);
    return inbox_.post_relay(rank, std::move(relay));
  }

  ManualClock clock_;
  LeaderInbox inbox_{2, clock_};
  LeaderMail mail_;
};

TEST_F(LeaderInboxTest, AFloodOfControlsIsReadInPieces) {
  const std::size_t items = LeaderInbox::kControlsATime / 4;
  for (std::uint64_t ticket = 1; ticket <= 10; ++ticket) ASSERT_TRUE(relay(1, items, ticket));
  ASSERT_TRUE(inbox_.post_request(Query{1, 2}));
  std::vector<std::uint64_t> tickets;
  for (const std::size_t count : {4U, 4U, 2U, 0U}) {
    inbox_.wait(clock_.now());
    inbox_.take(mail_);
    EXPECT_EQ(mail_.relays.size(), count);
    EXPECT_EQ(mail_.requests.size(), tickets.empty() ? 1U : 0U) << "others do not wait for them";
    for (const auto& one : mail_.relays) tickets.push_back(one.relay.ticket);
  }
  EXPECT_EQ(tickets, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}));
}

TEST_F(LeaderInboxTest, AControlOfAnySizeIsRead) {
  ASSERT_TRUE(relay(1, 3 * LeaderInbox::kControlsATime));
  ASSERT_TRUE(relay(1, 1));
  inbox_.take(mail_);
  EXPECT_EQ(mail_.relays.size(), 1U);
  inbox_.take(mail_);
  EXPECT_EQ(mail_.relays.size(), 1U);
}

TEST_F(LeaderInboxTest, EachHomeHasItsShare) {
  for (std::size_t i = 0; i < LeaderInbox::kMaxMessages / 2; ++i) ASSERT_TRUE(relay(1, 1));
  EXPECT_FALSE(relay(1, 1));
  EXPECT_TRUE(relay(0, 1));
  inbox_.take(mail_);
  EXPECT_EQ(mail_.relays.size(), LeaderInbox::kControlsATime);
  for (std::size_t i = 0; i < LeaderInbox::kControlsATime; ++i) ASSERT_TRUE(relay(1, 1));
  EXPECT_FALSE(relay(1, 1));
}

}  // namespace
}  // namespace tributary
