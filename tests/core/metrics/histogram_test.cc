#include "core/metrics/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace tributary {
namespace {

TEST(Histogram, BoundsAscend) {
  EXPECT_TRUE(std::ranges::is_sorted(kDurationBuckets));
  EXPECT_TRUE(std::ranges::is_sorted(kBatchBuckets));
  EXPECT_EQ(kDurationBuckets.front(), 5e-6);
  EXPECT_EQ(kDurationBuckets.back(), 10);
  for (std::size_t i = 1; i < kDurationBuckets.size(); ++i) {
    EXPECT_LT(kDurationBuckets[i] / kDurationBuckets[i - 1], 1.7) << "a median is off by no more";
  }
  EXPECT_EQ(DurationHistogram::bounds().size() + 1, DurationHistogram::kBuckets);
}

TEST(Histogram, ABoundBelongsToItsBucket) {
  BatchHistogram h;
  for (const double value : {0.0, 1.0, 1.5, 2.0, 4096.0, 4097.0}) h.observe(value);
  EXPECT_EQ(h.counts.front(), 2U);
  EXPECT_EQ(h.counts[1], 2U);
  EXPECT_EQ(h.counts[BatchHistogram::kBuckets - 2], 1U);
  EXPECT_EQ(h.counts.back(), 1U);
  EXPECT_DOUBLE_EQ(h.sum, 8197.5);
}

TEST(Histogram, AddsAnother) {
  DurationHistogram a;
  DurationHistogram b;
  a.observe(1e-6);
  b.observe(1e-6);
  b.observe(17);
  a.add(b);
  EXPECT_EQ(a.counts.front(), 2U);
  EXPECT_EQ(a.counts.back(), 1U);
  EXPECT_EQ(std::accumulate(a.counts.begin(), a.counts.end(), std::uint64_t{0}), 3U);
  EXPECT_DOUBLE_EQ(a.sum, 17.000002);
}

}  // namespace
}  // namespace tributary
