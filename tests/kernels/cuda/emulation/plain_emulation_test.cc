// The generic attention kernel and the merge on emulated threads. simt.h says what that shows.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/attend/generic.h"
#include "kernels/cuda/attend/merge.h"
#include "tests/kernels/cuda/emulation/attend_case.h"

namespace tributary::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

template <typename Row, typename Query>
void run(AttendCase& attend_case, int unit_rows, int parts) {
  using Kernel = cuda::Generic<Row, Query>;
  attend_case.run([](const cuda::AttendLaunch& launch) { Kernel(launch).run(); }, unit_rows, parts,
                  Kernel::kThreads, Kernel::kSharedBytes);
}

TEST(Generic, OfAnyWidthAndTypeIsNearFloat64) {
  for (AttendShape shape : {AttendShape{.heads = 3, .kv_lora_rank = 512, .qk_rope_head_dim = 64},
                            AttendShape{.heads = 2, .kv_lora_rank = 33, .qk_rope_head_dim = 0},
                            AttendShape{.heads = 5, .kv_lora_rank = 1, .qk_rope_head_dim = 2}}) {
    for (const DType row : {DType::kBF16, DType::kF32}) {
      for (const DType query : {DType::kBF16, DType::kF32}) {
        shape.row_dtype = row;
        shape.query_dtype = query;
        AttendCase attend_case(shape, 31);
        for (const int rows : {1, 140}) {
          const std::size_t leaf = attend_case.add_leaf(rows);
          attend_case.add_task(leaf, attend_case.add_queries(2, 8), 2, rows - 2);
          attend_case.add_task(leaf, attend_case.add_queries(1, 0.1), 1, -1);
        }
        if (row == DType::kBF16) {
          query == DType::kBF16 ? run<bf16, bf16>(attend_case, 4, 2)
                                : run<bf16, float>(attend_case, 4, 2);
        } else {
          query == DType::kBF16 ? run<float, bf16>(attend_case, 4, 2)
                                : run<float, float>(attend_case, 4, 2);
        }
        attend_case.expect_near_exact();
      }
    }
  }
}

constexpr int kHeads = 5;
constexpr int kWidth = 37;
constexpr std::size_t kRecord = static_cast<std::size_t>(kHeads) * (kWidth + 1);

std::size_t lse_index(std::size_t record, int head) {
  return record * kRecord + static_cast<std::size_t>(kHeads * kWidth + head);
}

std::vector<float> merged(std::vector<float> states, const std::vector<MergeOp>& ops) {
  const cuda::MergeLaunch launch{
      .ops = ops.data(), .heads = kHeads, .width = kWidth, .states = states.data()};
  simt::run({.blocks = static_cast<unsigned>(ops.size()),
             .blocks_y = (kHeads + cuda::kMergeWarps - 1) / cuda::kMergeWarps,
             .threads = cuda::kMergeWarps * simt::kWarpLanes},
            [&launch] { cuda::merge_block(launch); });
  return states;
}

std::vector<float> random_states(std::size_t records, double lse_deviation) {
  std::mt19937 random(41);
  std::normal_distribution<float> normal;
  std::vector<float> states(records * kRecord);
  for (float& value : states) value = normal(random);
  for (std::size_t record = 0; record < records; ++record) {
    for (int head = 0; head < kHeads; ++head) {
      states[lse_index(record, head)] *= static_cast<float>(lse_deviation);
    }
  }
  return states;
}

void fill(std::vector<float>& states, std::size_t record, float o, float lse) {
  for (std::size_t i = 0; i < kRecord; ++i) {
    states[record * kRecord + i] = i < static_cast<std::size_t>(kHeads * kWidth) ? o : lse;
  }
}

void expect_same(const std::vector<float>& a, std::size_t i, const std::vector<float>& b,
                 std::size_t j) {
  for (std::size_t k = 0; k < kRecord; ++k) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a[i * kRecord + k]),
              std::bit_cast<std::uint32_t>(b[j * kRecord + k]))
        << "element " << k;
  }
}

TEST(Merge, IsTheWeightedMean) {
  for (const double deviation : {1.0, 20.0}) {
    const std::vector<float> states = random_states(5, deviation);
    const auto got = merged(states, {{.dst = 4, .left = 0, .right = 2, .tokens = 1}, {}});
    for (int head = 0; head < kHeads; ++head) {
      const double left = states[lse_index(0, head)];
      const double right = states[lse_index(2, head)];
      const double maximum = std::max(left, right);
      const double wl = std::exp(left - maximum);
      const double wr = std::exp(right - maximum);
      EXPECT_NEAR(got[lse_index(4, head)], maximum + std::log(wl + wr),
                  4e-7 * std::max(1.0, std::abs(maximum)));
      for (int c = 0; c < kWidth; ++c) {
        const auto at = static_cast<std::size_t>(head * kWidth + c);
        EXPECT_NEAR(got[4 * kRecord + at],
                    (wl * states[at] + wr * states[2 * kRecord + at]) / (wl + wr), 4e-6);
      }
    }
    for (std::size_t record = 0; record < 4; ++record) expect_same(got, record, states, record);
  }
}

TEST(Merge, SkipsWhatIsEmptyOrWeighsNothing) {
  for (const float lse : {-kInfinity, kInfinity, kNaN, -4000.0F}) {
    std::vector<float> states = random_states(6, 1);
    fill(states, 1, kNaN, lse);
    const auto got = merged(states, {{.dst = 3, .left = 0, .right = 1, .tokens = 1},
                                     {.dst = 4, .left = 1, .right = 0, .tokens = 1},
                                     {.dst = 5, .left = 1, .tokens = 1}});
    expect_same(got, 3, states, 0);
    expect_same(got, 4, states, 0);
    expect_same(got, 5, states, 1);  // without a right side whatever it is
  }
  std::vector<float> states = random_states(4, 1);
  fill(states, 0, kNaN, -kInfinity);
  fill(states, 1, kNaN, kNaN);
  fill(states, 3, 0, -kInfinity);
  const auto got = merged(states, {{.dst = 2, .left = 0, .right = 1, .tokens = 1}});
  expect_same(got, 2, states, 3);
}

TEST(Merge, InPlaceHasTheSameBits) {
  const std::vector<float> states = random_states(9, 2);
  const auto apart = merged(states, {{.dst = 6, .left = 0, .right = 3, .tokens = 3}});
  const auto left = merged(states, {{.dst = 0, .left = 0, .right = 3, .tokens = 3}});
  const auto right = merged(states, {{.dst = 3, .left = 0, .right = 3, .tokens = 3}});
  for (std::size_t token = 0; token < 3; ++token) {
    expect_same(left, token, apart, 6 + token);
    expect_same(right, 3 + token, apart, 6 + token);
  }
}

}  // namespace
}  // namespace tributary::test
