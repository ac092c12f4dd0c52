// The memory that UCX writes payloads into: it is bounded, reused, and left alone for a while after
// a receive that failed.
#include "comm/ucx/bounce_buffers.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>
#include <vector>

namespace tributary::testing_support {
namespace {

using ucx::BounceBuffers;

constexpr std::size_t kMiB = std::size_t{1} << 20;

class BounceBuffersTest : public testing::Test {
 protected:
  std::optional<BounceBuffers::Buffer> acquire(std::size_t bytes) {
    return buffers_.acquire(bytes, now_);
  }

  BounceBuffers buffers_{64 * kMiB};
  BounceBuffers::Clock::time_point now_ = BounceBuffers::Clock::now();
};

TEST_F(BounceBuffersTest, AllOfThemStayBelowTheBound) {
  std::vector<BounceBuffers::Buffer> taken;
  // Several sizes, so that idle buffers of another size have to make room.
  for (const std::size_t bytes : {kMiB, 7 * kMiB, 3 * kMiB, 16 * kMiB, 100'000UL}) {
    while (auto buffer = acquire(bytes)) {
      EXPECT_GE(buffer->capacity(), bytes);
      EXPECT_LE(buffers_.bytes(), 64 * kMiB);
      taken.push_back(std::move(*buffer));
    }
    EXPECT_GT(buffers_.bytes() + 2 * bytes, 64 * kMiB) << "refused with room for it";
    while (!taken.empty()) {
      buffers_.release(std::move(taken.back()));
      taken.pop_back();
    }
  }
  EXPECT_LE(buffers_.bytes(), 8 * kMiB) << "kept although nobody uses them";
}

TEST_F(BounceBuffersTest, OneThatIsLargerThanTheBoundGoesAlone) {
  auto small = acquire(kMiB);
  ASSERT_TRUE(small);
  EXPECT_FALSE(acquire(65 * kMiB));
  buffers_.release(std::move(*small));
  auto large = acquire(65 * kMiB);
  ASSERT_TRUE(large);
  EXPECT_GE(large->capacity(), 65 * kMiB);
  EXPECT_FALSE(acquire(kMiB));
  buffers_.release(std::move(*large));
  EXPECT_EQ(buffers_.bytes(), 0);
  EXPECT_TRUE(acquire(kMiB));
}

TEST_F(BounceBuffersTest, TheLastUsedIsUsedAgain) {
  auto first = acquire(3 * kMiB);
  auto second = acquire(3 * kMiB);
  const std::byte* last = second->data();
  buffers_.release(std::move(*first));
  buffers_.release(std::move(*second));
  EXPECT_EQ(acquire(4 * kMiB)->data(), last);
}

// UCX may still write into it.
TEST_F(BounceBuffersTest, OneOfAFailedReceiveIsNeitherUsedNorFreedForAWhile) {
  auto failed = acquire(16 * kMiB);
  const std::byte* memory = failed->data();
  buffers_.quarantine(std::move(*failed), now_);
  EXPECT_EQ(buffers_.bytes(), 16 * kMiB) << "it counts";
  std::vector<BounceBuffers::Buffer> others;
  while (auto other = acquire(16 * kMiB)) {
    EXPECT_NE(other->data(), memory);
    others.push_back(std::move(*other));
  }
  EXPECT_EQ(others.size(), 3);
  now_ += BounceBuffers::kQuarantine;
  const auto again = acquire(16 * kMiB);
  ASSERT_TRUE(again);
  EXPECT_EQ(again->data(), memory);
}

TEST_F(BounceBuffersTest, OneOfAFailedReceiveIsNeverFreed) {
  auto failed = acquire(16 * kMiB);
  buffers_.quarantine(std::move(*failed), now_);
  now_ += BounceBuffers::kQuarantine;
  auto again = acquire(16 * kMiB);
  buffers_.release(std::move(*again));
  // Nothing of this size fits beside it.
  EXPECT_EQ(buffers_.bytes(), 16 * kMiB);
  auto other = acquire(kMiB);
  EXPECT_FALSE(acquire(64 * kMiB));
  EXPECT_GE(buffers_.bytes(), 16 * kMiB);
}

}  // namespace
}  // namespace tributary::testing_support
