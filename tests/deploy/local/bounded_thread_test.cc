#include "deploy/local/bounded_thread.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>

namespace tributary {
namespace {

constexpr std::chrono::milliseconds kShort{5};
constexpr std::chrono::seconds kLong{30};

TEST(BoundedThread, IsWaitedForUpToTheLimit) {
  std::promise<void> release;
  BoundedThread thread([gate = release.get_future().share()] { gate.wait(); });
  EXPECT_FALSE(thread.join_within(kShort));
  EXPECT_FALSE(thread.join_within(std::chrono::milliseconds(0)));
  release.set_value();
  EXPECT_TRUE(thread.join_within(kLong));
  EXPECT_TRUE(thread.join_within(std::chrono::milliseconds(0)));
}

TEST(BoundedThread, GoesOnAfterItsObject) {
  std::promise<void> release;
  auto owned = std::make_shared<std::promise<int>>();
  std::future<int> result = owned->get_future();
  std::optional<BoundedThread> thread(std::in_place, [gate = release.get_future().share(), owned] {
    gate.wait();
    owned->set_value(7);
  });
  owned.reset();
  thread.reset();
  release.set_value();
  ASSERT_EQ(result.wait_for(kLong), std::future_status::ready);
  EXPECT_EQ(result.get(), 7);
}

}  // namespace
}  // namespace tributary
