// The correctness grid of decode attention: batch x new tokens x length x heads x lengths x bound.
#include "tests/gpu/decode_grid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/gpu/float64_attend.h"

namespace tributary::test {
namespace {

class DecodeGridTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    backend_ = make_cuda_backend({});
    grid_ = std::make_unique<DecodeGrid>(*backend_);
  }
  static void TearDownTestSuite() {
    grid_.reset();
    backend_.reset();
  }
  static void check(const GridCase& grid_case) { expect_near(grid_case, grid_->run(grid_case)); }

  static inline std::unique_ptr<Backend> backend_;
  static inline std::unique_ptr<DecodeGrid> grid_;
};

constexpr int kHeads[] = {1, 3, 9, 16, 63, 64, 126, 128};

TEST_F(DecodeGridTest, EveryShapeIsNearFloat64) {
  for (const int batch : {1, 2, 6, 64}) {
    for (const int tokens : {1, 2, 4}) {
      for (const int length : {20, 140, 4096}) {
        for (const int heads : kHeads) {
          for (const bool variable : {false, true}) {
            for (const bool causal : {false, true}) {
              check({.batch = batch,
                     .tokens = tokens,
                     .length = length,
                     .heads = heads,
                     .variable = variable,
                     .causal = causal});
            }
          }
        }
      }
    }
  }
}

TEST_F(DecodeGridTest, ABatchWithEmptySequencesIsNearFloat64) {
  for (const int heads : kHeads) {
    for (const int tokens : {1, 2, 16}) {
      check({.batch = 128,
             .tokens = tokens,
             .length = 700,
             .heads = heads,
             .variable = true,
             .causal = true,
             .empties = true});
    }
  }
}

TEST_F(DecodeGridTest, FlatAndSteepScoresAreNearFloat64) {
  for (const double deviation : {0.1, 2.0, 8.0}) {
    for (const int heads : {16, 64, 128}) {
      check({.batch = 6,
             .tokens = 2,
             .length = 4096,
             .heads = heads,
             .variable = true,
             .deviation = deviation});
    }
  }
}

TEST_F(DecodeGridTest, TheFastOrderIsNearFloat64) {
  const auto fast = make_cuda_backend({.fast_merge_order = true});
  DecodeGrid grid(*fast);
  for (const int heads : {1, 16, 64, 128}) {
    for (const int batch : {1, 6, 64}) {
      const GridCase grid_case{
          .batch = batch, .tokens = 2, .length = 4096, .heads = heads, .variable = true};
      expect_near(grid_case, grid.run(grid_case));
    }
  }
}

TEST_F(DecodeGridTest, BitsDoNotDependOnTheBatch) {
  for (const int heads : {3, 16, 128}) {
    const GridCase grid_case{
        .batch = 6, .tokens = 2, .length = 4096, .heads = heads, .variable = true};
    const std::vector<float> all = grid_->run(grid_case).states;
    for (int s = 0; s < grid_case.batch; ++s) {
      const std::vector<float> alone = grid_->run(grid_case, s).states;
      EXPECT_EQ(std::memcmp(alone.data(), &all[static_cast<std::size_t>(s) * alone.size()],
                            alone.size() * sizeof(float)),
                0)
          << "sequence " << s << " of " << grid_case.text();
    }
  }
}

TEST_F(DecodeGridTest, Float64OnTheDeviceIsThatOfTheHost) {
  const GridCase grid_case{.batch = 5, .tokens = 2, .length = 3000, .heads = 2, .variable = true};
  const GridResult result = grid_->run(grid_case);
  for (int s = 0; s < grid_case.batch; ++s) {
    const std::vector<double> expected = grid_->on_host(grid_case, s);
    const double* got = &result.exact[static_cast<std::size_t>((s * 2 + 1) * 2) * kGridRecord];
    for (std::size_t c = 0; c < expected.size(); ++c) {
      // Sums of 3000 in another order.
      ASSERT_NEAR(got[c], expected[c], 1e-11 * std::max(1.0, std::abs(expected[c]))) << s;
    }
  }
}

}  // namespace
}  // namespace tributary::test
