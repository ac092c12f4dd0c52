// Quantiles by nearest rank, with weights.
#include "deploy/predict/simulate/quantiles.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

TEST(Samples, NoneGivesZeros) {
  Samples samples;
  samples.add(3, 0);
  EXPECT_EQ(samples.distribution(), Distribution{});
}

TEST(Samples, QuantilesAreThoseOfTheSortedValues) {
  Samples samples;
  for (int i = 100; i >= 1; --i) samples.add(i);
  const Distribution d = samples.distribution();
  EXPECT_DOUBLE_EQ(d.mean, 50.5);
  EXPECT_EQ(d.p50, 50);
  EXPECT_EQ(d.p99, 99);
  EXPECT_EQ(d.max, 100);
}

TEST(Samples, AWeightIsThatManySamples) {
  Samples weighted;
  Samples repeated;
  for (int value = 1; value <= 20; ++value) {
    weighted.add(value, value);
    for (int i = 0; i < value; ++i) repeated.add(value);
  }
  EXPECT_EQ(weighted.distribution(), repeated.distribution());
}

}  // namespace
}  // namespace tributary
