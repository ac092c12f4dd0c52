#include "deploy/service/worker/leader/partial_calls.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

using std::chrono::milliseconds;

class PartialCallsTest : public testing::Test {
 protected:
  void add(wire::CallPart part, std::vector<std::uint64_t> ids, milliseconds until) {
    std::vector<WaitingItem> items(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) items[i].item.id = ids[i];
    calls.add(part, std::move(items), begin + until, ready);
  }
  std::vector<std::uint64_t> take_ready() {
    std::vector<std::uint64_t> ids;
    for (const WaitingItem& waiting : ready) ids.push_back(waiting.item.id);
    ready.clear();
    return ids;
  }
  using Ids = std::vector<std::uint64_t>;

  const Time begin{};
  PartialCalls calls;
  std::deque<WaitingItem> ready;
};

TEST_F(PartialCallsTest, ACallIsReadyWhenItsLastMessageHasCome) {
  add({.call = 1, .messages = 2}, {10, 11}, milliseconds(5));
  add({.call = 2, .messages = 3}, {20}, milliseconds(7));
  add({.call = 3, .messages = 1}, {30}, milliseconds(7));
  EXPECT_EQ(take_ready(), Ids{30});  // others do not wait for it, nor it for them
  EXPECT_EQ(calls.next_event(), begin + milliseconds(5));
  add({.call = 2, .messages = 3}, {}, milliseconds(8));  // all of its items were refused
  add({.call = 1, .messages = 2}, {12}, milliseconds(9));
  EXPECT_EQ(take_ready(), (Ids{10, 11, 12}));
  EXPECT_EQ(calls.next_event(), begin + milliseconds(7));
  add({.call = 2, .messages = 3}, {21}, milliseconds(9));
  EXPECT_EQ(take_ready(), (Ids{20, 21}));
  EXPECT_EQ(calls.next_event(), Time::max());
}

TEST_F(PartialCallsTest, ItemsWaitForTheRestUntilTheirTimeAndLateOnesForNothing) {
  add({.call = 1, .messages = 3}, {10}, milliseconds(5));
  add({.call = 1, .messages = 3}, {11}, milliseconds(9));
  calls.release(begin + milliseconds(4), ready);
  EXPECT_EQ(take_ready(), Ids{});
  calls.release(begin + milliseconds(5), ready);
  EXPECT_EQ(take_ready(), (Ids{10, 11}));
  EXPECT_EQ(calls.next_event(), Time::max());
  add({.call = 1, .messages = 3}, {12}, milliseconds(20));
  EXPECT_EQ(take_ready(), Ids{12});
  // Forgotten, after a second.
  add({.call = 2, .messages = 2}, {20}, milliseconds(5));
  calls.release(begin + milliseconds(6), ready);
  calls.release(begin + milliseconds(2000), ready);
  EXPECT_EQ(take_ready(), Ids{20});
  add({.call = 2, .messages = 2}, {21}, milliseconds(2005));
  EXPECT_EQ(take_ready(), Ids{});
}

TEST_F(PartialCallsTest, AnItemThatIsRemovedIsNotReadyLater) {
  add({.call = 1, .messages = 2}, {10, 11}, milliseconds(5));
  EXPECT_FALSE(calls.remove(12));
  EXPECT_EQ(calls.remove(10).value().item.id, 10U);
  EXPECT_FALSE(calls.remove(10));
  add({.call = 1, .messages = 2}, {12}, milliseconds(5));
  EXPECT_EQ(take_ready(), (Ids{11, 12}));
}

TEST_F(PartialCallsTest, CallsWithoutEndAreBounded) {
  for (std::uint64_t i = 0; i < 2000; ++i) add({.call = i, .messages = 2}, {i}, milliseconds(5));
  EXPECT_EQ(take_ready().size(), 2000U - 1024U);
  add({.call = 7, .messages = 2}, {3000}, milliseconds(5));
  EXPECT_EQ(take_ready(), (Ids{7, 3000}));
}

}  // namespace
}  // namespace tributary
