// The memory that a round's buffer keeps, depending on the rounds' needs.
#include "core/round/scratch_buffer.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/reference/reference_backend.h"

namespace tributary {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr auto kWindow = ScratchBuffer::kWindow;

class ScratchBufferTest : public testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  ScratchBuffer buffer_{*backend_};
  Time now_{std::chrono::hours(1)};
};

TEST_F(ScratchBufferTest, GrowsWithRounds) {
  EXPECT_NE(buffer_.data(), nullptr);
  for (const std::size_t bytes : {std::size_t{1}, kMiB, 3 * kMiB, 10 * kMiB}) {
    buffer_.reserve(bytes);
    ASSERT_GE(buffer_.bytes(), bytes);
    std::memset(buffer_.data(), 1, bytes);
  }
  EXPECT_LE(buffer_.bytes(), 15 * kMiB);
}

TEST_F(ScratchBufferTest, SteadyRoundsKeepTheirMemory) {
  buffer_.reserve(10 * kMiB);
  buffer_.trim(now_);
  const std::byte* const memory = buffer_.data();
  for (int i = 0; i < 10; ++i) {
    now_ += kWindow;
    buffer_.reserve(6 * kMiB);
    buffer_.trim(now_);
  }
  EXPECT_EQ(buffer_.data(), memory);
  EXPECT_EQ(buffer_.bytes(), 10 * kMiB);
}

TEST_F(ScratchBufferTest, WhatIsNotNeededForAWindowIsGivenBack) {
  buffer_.trim(now_);
  buffer_.reserve(100 * kMiB);
  buffer_.trim(now_ + kWindow / 2);  // within the window nothing happens
  buffer_.trim(now_ + kWindow);      // the large round was in the one that ends
  EXPECT_EQ(buffer_.bytes(), 100 * kMiB);
  buffer_.reserve(3 * kMiB);
  buffer_.reserve(2 * kMiB);
  buffer_.trim(now_ + 2 * kWindow);
  EXPECT_EQ(buffer_.bytes(), 3 * kMiB);
  std::memset(buffer_.data(), 1, 3 * kMiB);
}

TEST_F(ScratchBufferTest, AWindowWithoutRoundsEndsAllNeed) {
  buffer_.trim(now_);
  buffer_.reserve(100 * kMiB);
  buffer_.trim(now_ + 2 * kWindow);
  EXPECT_LE(buffer_.bytes(), ScratchBuffer::kSmall);
}

TEST_F(ScratchBufferTest, IdleItHoldsNextToNothing) {
  buffer_.reserve(100 * kMiB);
  for (int i = 0; i < 4; ++i) buffer_.trim(now_ += kWindow);
  EXPECT_LE(buffer_.bytes(), ScratchBuffer::kSmall);
  EXPECT_NE(buffer_.data(), nullptr);
  buffer_.reserve(2 * kMiB);
  EXPECT_GE(buffer_.bytes(), 2 * kMiB);
}

}  // namespace
}  // namespace tributary
