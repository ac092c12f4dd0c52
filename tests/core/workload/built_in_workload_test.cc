// The built-in workload: the same everywhere, with the stated distribution.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/base/hash.h"
#include "core/workload/trace.h"

namespace tributary {
namespace {

void expect_request(const TraceRequest& request, double timestamp_ms, std::int64_t input_length,
                    std::int64_t output_length) {
  EXPECT_EQ(request.timestamp_ms, timestamp_ms);
  EXPECT_EQ(request.input_length, input_length);
  EXPECT_EQ(request.output_length, output_length);
  EXPECT_TRUE(request.hash_ids.empty());
}

// The same definition evaluated by another program, with another exp and log.
TEST(BuiltInWorkload, IsPinned) {
  const auto requests = built_in_workload(1000, 1);
  ASSERT_EQ(requests.size(), 1000U);
  expect_request(requests[0], 0, 4907, 239);
  expect_request(requests[1], 140, 2742, 847);
  expect_request(requests[2], 556, 9529, 232);
  expect_request(requests[999], 290184, 6057, 177);
  std::uint64_t hash = 0;
  for (const TraceRequest& request : requests) {
    for (const std::int64_t value : {static_cast<std::int64_t>(request.timestamp_ms),
                                     request.input_length, request.output_length}) {
      hash = mix64(hash + static_cast<std::uint64_t>(value) + kGoldenGamma);
    }
  }
  EXPECT_EQ(hash, 0x9f2a5c3b1e97a218U);
}

TEST(BuiltInWorkload, DependsOnTheSeedAndNotOnTheCount) {
  const auto some = built_in_workload(10, 7);
  const auto more = built_in_workload(20, 7);
  const auto others = built_in_workload(10, 8);
  std::size_t different = 0;
  for (std::size_t i = 0; i < some.size(); ++i) {
    expect_request(more[i], some[i].timestamp_ms, some[i].input_length, some[i].output_length);
    different += some[i].input_length != others[i].input_length ? 1 : 0;
  }
  EXPECT_GE(different, 9U);
  EXPECT_TRUE(built_in_workload(0, 7).empty());
}

TEST(BuiltInWorkload, HasTheStatedDistribution) {
  constexpr std::size_t kRequests = 20000;
  const auto requests = built_in_workload(kRequests, 3);
  std::vector<double> inputs;
  double input_sum = 0;
  double output_sum = 0;
  for (std::size_t i = 0; i < kRequests; ++i) {
    const TraceRequest& request = requests[i];
    ASSERT_GE(request.input_length, 64);
    ASSERT_LE(request.input_length, 126000);
    ASSERT_GE(request.output_length, 1);
    ASSERT_LE(request.output_length, 2000);
    ASSERT_GE(request.timestamp_ms, i > 0 ? requests[i - 1].timestamp_ms : 0);
    inputs.push_back(static_cast<double>(request.input_length));
    input_sum += inputs.back();
    output_sum += static_cast<double>(request.output_length);
  }
  std::nth_element(inputs.begin(), inputs.begin() + kRequests / 2, inputs.end());
  // Standard errors for 20,000 draws: median 7000 * 1.12 * sqrt(pi / 2 / n) = 70, mean about
  // 15,000 / sqrt(n) = 105, outputs about 200 / sqrt(n) = 1.5, gaps 294 / sqrt(n) = 2.1. Five each.
  EXPECT_NEAR(inputs[kRequests / 2], 7000, 350);
  EXPECT_NEAR(input_sum / kRequests, 12000, 525);
  EXPECT_NEAR(output_sum / kRequests, 350, 7.5);
  EXPECT_NEAR(requests.back().timestamp_ms / (kRequests - 1), 293.5, 10.5);
}

}  // namespace
}  // namespace tributary
