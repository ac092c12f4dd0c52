// The running softmax of the many-rows kernel by itself: when a row's peak rises, and that sums are
// rescaled only where that changes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cuda/sm90/softmax.h"
#include "tests/kernels/cuda/emulation/simt.h"

namespace tributary::test {
namespace {

using cuda::sm90::SoftmaxState;
namespace ptx = cuda::ptx;

constexpr unsigned kThreads = cuda::sm90::kGroupThreads;

/// A row's state after pages of which its largest scores are `largest`, and all its weights.
struct Followed {
  std::vector<float> peaks;
  std::vector<float> sums;
  float heaviest = 0;
  friend bool operator==(const Followed&, const Followed&) = default;
};

/// Row 3 of a group, while all other rows see `company` on every page.
Followed follow(const std::vector<float>& largest, float company) {
  Followed followed;
  simt::run({.threads = kThreads}, [&] {
    const bool ours = cuda::sm90::upper_row() == 3;
    SoftmaxState state;
    for (const float score : largest) {
      std::array<float, 32> page{};
      for (std::size_t i = 0; i < page.size(); ++i) {
        const bool upper = i / 2 % 2 == 0;
        page[i] = (ours && upper ? score : company) - static_cast<float>(i / 4);
      }
      float scores[32];
      std::ranges::copy(page, scores);
      float factor[2];
      cuda::sm90::weigh(scores, 1, state, factor);
      if (!ours || ptx::thread() % 4 != 0) continue;
      followed.peaks.push_back(state.peak[0]);
      followed.sums.push_back(state.sum[0]);
      for (std::size_t i = 0; i < page.size(); i += 4) {
        followed.heaviest = std::max(followed.heaviest, scores[i]);
      }
    }
  });
  return followed;
}

TEST(ManyRowsSoftmax, APeakRisesByMoreThanEightOrStays) {
  const Followed followed = follow({1, 5, 9, 9.5, 2, 17.5, 40, -3}, 0);
  EXPECT_EQ(followed.peaks, (std::vector<float>{1, 1, 1, 9.5, 9.5, 9.5, 40, 40}));
  EXPECT_EQ(followed.heaviest, 256);  // of 17.5 with a peak of 9.5, and of 9 with 1
}

TEST(ManyRowsSoftmax, APeakDoesNotDependOnOtherRows) {
  const std::vector<float> largest{1, 5, 9.5, 30};
  EXPECT_EQ(follow(largest, 0), follow(largest, 100));
  EXPECT_EQ(follow(largest, 0), follow(largest, -std::numeric_limits<float>::infinity()));
}

TEST(ManyRowsSoftmax, ARowWithoutScoresHasNoWeightUntilItHasSome) {
  const float nothing = -std::numeric_limits<float>::infinity();
  const Followed followed = follow({nothing, nothing, -50}, 3);
  EXPECT_EQ(followed.peaks, (std::vector<float>{nothing, nothing, -50}));
  EXPECT_EQ(followed.sums[1], 0);
  EXPECT_GE(followed.sums[2], 1);
}

/// Sums of 32 lanes after a rescaling by `factors` of their upper rows; lower rows' are 1.
std::vector<std::uint32_t> rescaled(const std::array<float, 32>& factors, bool by_vote) {
  std::vector<std::uint32_t> bits(factors.size() * 128);
  simt::run({.threads = 32}, [&] {
    const std::size_t lane = ptx::thread();
    float output[128];
    for (std::size_t i = 0; i < 128; ++i) output[i] = static_cast<float>(i) * 0.37F - 9;
    output[0] = -0.0F;
    output[1] = std::numeric_limits<float>::denorm_min();
    output[2] = std::numeric_limits<float>::infinity();
    const float factor[2] = {factors[lane], 1};
    if (by_vote) {
      cuda::sm90::rescale(output, factor);
    } else {
      for (std::size_t i = 0; i < 128; ++i) output[i] *= factor[i / 2 % 2];
    }
    for (std::size_t i = 0; i < 128; ++i) {
      bits[lane * 128 + i] = std::bit_cast<std::uint32_t>(output[i]);
    }
  });
  return bits;
}

TEST(ManyRowsSoftmax, AVoteOnRescalingChangesNoBit) {
  std::array<float, 32> factors{};
  factors.fill(1);
  EXPECT_EQ(rescaled(factors, true), rescaled(factors, false));
  factors[17] = 0.3F;  // one lane's alone
  EXPECT_EQ(rescaled(factors, true), rescaled(factors, false));
  factors[0] = 0;
  EXPECT_EQ(rescaled(factors, true), rescaled(factors, false));
}

}  // namespace
}  // namespace tributary::test
