#include "core/interface/recorded_calls.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "core/base/error.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/interface/deferred_backend.h"

namespace tributary {
namespace {

constexpr std::size_t kKeys = 2;
constexpr std::size_t kRecordingRoom = 8;

/// A buffer of numbers, and another into which calls that may be recorded gather some of them.
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
  /// A call whose results go into the other buffer, from `to` on.
  [[nodiscard]] Call gather(const Records& records, std::size_t to = 0) const {
    return GatherArgs{records, from_->data(), to_->data() + to * sizeof(std::uint32_t),
                      sizeof(std::uint32_t)};
  }
  void run(const Records& records, std::size_t to = 0, std::uint64_t kind = 0) {
    const Call call = gather(records, to);
    calls_.run(std::span(&call, 1), kind);
  }
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
  run({3, 4});
  EXPECT_EQ(gathered(2), (Numbers{103, 104}));
  EXPECT_EQ(backend_.records(), 0);
  run({5, 6});
  EXPECT_EQ(gathered(2), (Numbers{105, 106}));
  EXPECT_EQ(backend_.records(), 1);
  run({7, 8, 9});
  EXPECT_EQ(gathered(3), (Numbers{107, 108, 109}));
  EXPECT_EQ(backend_.records(), 1);
  EXPECT_EQ(backend_.replays(), 2);
  EXPECT_EQ(backend_.single_calls(), 1);
}

TEST_F(RecordedCallsTest, ReplaysThatAreNotWaitedForKeepTheirPlans) {
  for (const std::int64_t record : {1, 1, 2, 3}) run({record});
  backend_.call(GatherArgs{Records{0}, to_->data(), to_->data() + 4, sizeof(std::uint32_t)});
  run({4});
  EXPECT_EQ(gathered(2), (Numbers{104, 103}));
}

TEST_F(RecordedCallsTest, WhatDoesNotFitIsRecordedAnew) {
  for (int time = 0; time < 2; ++time) run({1});
  Records many(kRecordingRoom + 1);
  std::iota(many.begin(), many.end(), 2);
  run(many);
  EXPECT_EQ(gathered(many.size()), (Numbers{102, 103, 104, 105, 106, 107, 108, 109, 110}));
  EXPECT_EQ(backend_.records(), 2);
}

TEST_F(RecordedCallsTest, ListsAreToldApartByAllButTheirPlanData) {
  const auto other = backend_.allocate(kNumbers * sizeof(std::uint32_t));
  const Records five{5};
  const Records none{0};
  for (int time = 0; time < 3; ++time) {
    run({1});
    const std::vector<Call> through{
        GatherArgs{five, from_->data(), other->data(), sizeof(std::uint32_t)},
        GatherArgs{none, other->data(), to_->data(), sizeof(std::uint32_t)}};
    calls_.run(through);
    EXPECT_EQ(gathered(1), (Numbers{105}));
  }
  EXPECT_EQ(backend_.records(), 2);
  EXPECT_EQ(backend_.single_calls(), 3) << "each for the first time";
}

TEST_F(RecordedCallsTest, AListOfAnotherKindIsRememberedApart) {
  for (int time = 0; time < 3; ++time) {
    run({1}, 0, /*kind=*/1);
    run({2}, 0, /*kind=*/2);
  }
  EXPECT_EQ(backend_.records(), 2);
  EXPECT_EQ(gathered(1), (Numbers{102}));
}

TEST_F(RecordedCallsTest, TheListThatWasNotUsedForLongestIsForgotten) {
  for (int time = 0; time < 2; ++time) {
    run({1}, 0);
    run({2}, 1);
  }
  EXPECT_EQ(backend_.records(), 2);
  run({1}, 0);
  run({3}, 2);  // in place of the list that writes to 1
  run({1}, 0);
  EXPECT_EQ(backend_.records(), 2);
  run({4}, 1);
  EXPECT_EQ(backend_.records(), 2) << "for the first time again";
  EXPECT_EQ(gathered(3), (Numbers{101, 104, 103}));
}

TEST_F(RecordedCallsTest, WhatThrowsPassesThroughAndIsForgotten) {
  const Records one{1};
  const Records bad{-1};
  const std::vector<Call> good{gather(one, 0), gather(one, 1)};
  const std::vector<Call> fails{gather(one, 0), gather(bad, 1)};
  const auto code = [&](std::span<const Call> calls) {
    return status_of([&] { calls_.run(calls); }).code();
  };
  EXPECT_EQ(code(fails), ErrorCode::kInvalidArgument);
  EXPECT_EQ(backend_.records(), 0);
  for (int time = 0; time < 2; ++time) calls_.run(good);
  EXPECT_EQ(backend_.records(), 1) << "the failed call did not count";
  EXPECT_EQ(code(fails), ErrorCode::kInvalidArgument);
  calls_.run(good);
  EXPECT_EQ(gathered(2), (Numbers{101, 101}));
  EXPECT_EQ(backend_.records(), 1) << "for the first time again";
}

TEST_F(RecordedCallsTest, NoCallsAreNothingToRemember) {
  for (int time = 0; time < 2; ++time) calls_.run({});
  EXPECT_EQ(backend_.records(), 0);
}

TEST(RecordedCallsOfPlainBackends, AreMadeOneByOne) {
  const auto backend = make_reference_backend();
  RecordedCalls calls(*backend, kKeys);
  std::vector<std::int64_t> numbers{7, 8, 9};
  for (int time = 0; time < 3; ++time) {
    const std::vector<std::int64_t> index{time};
    std::int64_t got = 0;
    const Call gather = GatherArgs{index, std::as_bytes(std::span(numbers)).data(),
                                   reinterpret_cast<std::byte*>(&got), sizeof(got)};
    calls.run(std::span(&gather, 1));
    EXPECT_EQ(got, 7 + time);
  }
}

}  // namespace
}  // namespace tributary
