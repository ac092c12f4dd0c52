// Whose controls wait for the leader, and whose find no room.
#include "deploy/service/worker/home/relays.h"

#include <gtest/gtest.h>

#include <vector>

namespace tributary {
namespace {

class RelaysTest : public testing::Test {
 protected:
  RelaysTest() { peers_.stop(); }  // answers go nowhere

  bool open(std::uint64_t key, std::size_t items = 1) {
    wire::ControlReply reply;
    reply.items.resize(items);
    const std::uint64_t ticket = relays_.open(1, key, std::move(reply));
    if (ticket != 0) tickets_.push_back(ticket);
    return ticket != 0;
  }
  void answer_one() {
    relays_.answer({.ticket = tickets_.back(), .items = {}, .message = {}});
    tickets_.pop_back();
  }

  Peers peers_;
  Relays relays_{peers_};
  std::vector<std::uint64_t> tickets_;
};

TEST_F(RelaysTest, AKeyHasItsShareAndTakesNothingOfOthers) {
  for (std::size_t i = 0; i < Relays::kMostOfKey; ++i) ASSERT_TRUE(open(7));
  EXPECT_FALSE(open(7));
  EXPECT_TRUE(open(8));
  answer_one();  // of 8
  answer_one();
  EXPECT_TRUE(open(7));
  EXPECT_FALSE(open(7));
  EXPECT_EQ(relays_.refused(), 2U);
}

TEST_F(RelaysTest, AShareCountsItemsToo) {
  EXPECT_TRUE(open(7, 2 * Relays::kMostItemsOfKey)) << "alone a control has any size";
  EXPECT_FALSE(open(7));
  answer_one();
  EXPECT_TRUE(open(7, Relays::kMostItemsOfKey - 1));
  EXPECT_TRUE(open(7));
  EXPECT_FALSE(open(7));
}

TEST_F(RelaysTest, AllTogetherHaveABound) {
  for (std::size_t i = 0; i < Relays::kMost; ++i) ASSERT_TRUE(open(i / Relays::kMostOfKey));
  EXPECT_FALSE(open(Relays::kMost));
  answer_one();
  EXPECT_TRUE(open(Relays::kMost));
}

}  // namespace
}  // namespace tributary
