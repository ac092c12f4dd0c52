#include "core/interface/recorded_calls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/reference/reference_backend.h"
#include "tests/core/deferred_backend.h"

namespace tributary {
namespace {

constexpr std::size_t kKeys = 2;
constexpr std::size_t kRecordingRoom = 8;

/// A buffer of numbers, and another of what was gathered of it by calls that may be recorded.
class RecordedCallsTest : public testing::Test {
 protected:
  using Records = std::vector<std::int64_t>;
  using Numbers = std::vector<std::uint32_t>;

  static constexpr std::size_t kNumbers = 32;

  void SetUp() override {
    Numbers numbers(kNumbers);
    std::iota(numbers.begin(), numbers.end(), 100U);
    backend_.upload(from_->data(), std::as_bytes(std::span(numbers)));
  }
  [[nodiscard]] std::function<void()> gather(const Records& records) {
    return [this, &records] {
      backend_.gather({records, from_->data(), to_->data(), sizeof(std::uint32_t)});
    };
  }
  void run(const CallsKey& key, const Records& records) { calls_.run(key, gather(records)); }
  [[nodiscard]] Numbers gathered(std::size_t count) {
    Numbers numbers(count);
    backend_.download(std::as_writable_bytes(std::span(numbers)), to_->data());
    return numbers;
  }

  test::DeferredQueue queue_;
  test::DeferredBackend backend_{make_reference_backend(), queue_, kRecordingRoom};
  std::unique_ptr<Buffer> from_ = backend_.allocate(kNumbers * sizeof(std::uint32_t));
  std::unique_ptr<Buffer> to_ = backend_.allocate(kNumbers * sizeof(std::uint32_t));
  RecordedCalls calls_{backend_, kKeys};
};

TEST_F(RecordedCallsTest, TheFirstTimeIsMadeTheSecondRecordedTheThirdReplayed) {
  run({1}, {3, 4});
  EXPECT_EQ(gathered(2), (Numbers{103, 104}));
  EXPECT_EQ(backend_.records(), 0);
  run({1}, {5, 6});
  EXPECT_EQ(gathered(2), (Numbers{105, 106}));
  EXPECT_EQ(backend_.records(), 1);
  run({1}, {7, 8, 9});
  EXPECT_EQ(gathered(3), (Numbers{107, 108, 109}));
  EXPECT_EQ(backend_.records(), 1);
  EXPECT_EQ(backend_.replays(), 2);
  EXPECT_EQ(backend_.single_calls(), 1);
}

TEST_F(RecordedCallsTest, ReplaysThatAreNotWaitedForKeepTheirPlans) {
  for (const std::int64_t record : {1, 1, 2, 3}) run({1}, {record});
  backend_.gather({Records{0}, to_->data(), to_->data() + 4, sizeof(std::uint32_t)});
  run({1}, {4});
  EXPECT_EQ(gathered(2), (Numbers{104, 103}));
}

TEST_F(RecordedCallsTest, WhatDoesNotFitIsRecordedAnew) {
  for (int time = 0; time < 2; ++time) run({1}, {1});
  Records many(kRecordingRoom + 1);
  std::iota(many.begin(), many.end(), 2);
  run({1}, many);
  EXPECT_EQ(gathered(many.size()), (Numbers{102, 103, 104, 105, 106, 107, 108, 109, 110}));
  EXPECT_EQ(backend_.records(), 2);
  // Other calls under the same key: slower, and right.
  const auto other = backend_.allocate(kNumbers * sizeof(std::uint32_t));
  calls_.run({1}, [&] {
    backend_.gather({Records{5}, from_->data(), other->data(), sizeof(std::uint32_t)});
    backend_.gather({Records{0}, other->data(), to_->data(), sizeof(std::uint32_t)});
  });
  EXPECT_EQ(gathered(1), (Numbers{105}));
  EXPECT_EQ(backend_.records(), 3);
}

TEST_F(RecordedCallsTest, TheKeyThatWasNotUsedForLongestIsForgotten) {
  for (int time = 0; time < 2; ++time) {
    run({1}, {1});
    run({2}, {2});
  }
  EXPECT_EQ(backend_.records(), 2);
  run({1}, {1});
  run({3}, {3});  // in place of 2
  run({1}, {1});
  EXPECT_EQ(backend_.records(), 2);
  run({2}, {4});
  EXPECT_EQ(backend_.records(), 2) << "for the first time again";
  EXPECT_EQ(gathered(1), (Numbers{104}));
}

TEST_F(RecordedCallsTest, WhatThrowsPassesThroughAndIsForgotten) {
  const auto fails = [&] {
    backend_.gather({Records{1}, from_->data(), to_->data(), sizeof(std::uint32_t)});
    throw std::runtime_error("no more");
  };
  EXPECT_THROW(calls_.run({1}, fails), std::runtime_error);
  EXPECT_EQ(backend_.records(), 0);
  for (int time = 0; time < 2; ++time) run({1}, {1});
  EXPECT_EQ(backend_.records(), 1) << "the failed one did not count";
  EXPECT_THROW(calls_.run({1}, fails), std::runtime_error);
  run({1}, {7});
  EXPECT_EQ(gathered(1), (Numbers{107}));
  EXPECT_EQ(backend_.records(), 1) << "for the first time again";
}

TEST(RecordedCallsOfPlainBackends, AreMadeOneByOne) {
  const auto backend = make_reference_backend();
  RecordedCalls calls(*backend, kKeys);
  int made = 0;
  for (int time = 0; time < 3; ++time) calls.run({1}, [&] { ++made; });
  EXPECT_EQ(made, 3);
}

}  // namespace
}  // namespace tributary
