// The merge of partial states: the formula, its identities, and what counts as empty.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
// More heads than any vector has lanes; neither number is a multiple of a vector's.
constexpr StateShape kRecord{.heads = 19, .width = 37};

class MergeCase {
 public:
  // `records` states of normal outputs and lse of the given deviation.
  MergeCase(std::size_t records, double deviation, std::uint32_t seed)
      : states(Normal(seed).floats(records * kRecord.record_floats())) {
    Normal normal(seed + 1);
    for (std::size_t r = 0; r < records; ++r) {
      const std::vector<float> lse = normal.floats(kRecord.heads, deviation);
      for (int h = 0; h < kRecord.heads; ++h) set_lse(r, h, lse[static_cast<std::size_t>(h)]);
    }
  }

  [[nodiscard]] float& lse(std::size_t record, int head) {
    return states[record * kRecord.record_floats() +
                  static_cast<std::size_t>(kRecord.heads * kRecord.width + head)];
  }
  [[nodiscard]] float& o(std::size_t record, int head, int column) {
    return states[record * kRecord.record_floats() +
                  static_cast<std::size_t>(head * kRecord.width + column)];
  }
  void set_lse(std::size_t record, int head, float value) { lse(record, head) = value; }
  void fill(std::size_t record, float o_value, float lse_value) {
    for (int h = 0; h < kRecord.heads; ++h) {
      set_lse(record, h, lse_value);
      for (int c = 0; c < kRecord.width; ++c) o(record, h, c) = o_value;
    }
  }

  std::vector<float> states;
};

bool same_record(const std::vector<float>& a, std::size_t i, const std::vector<float>& b,
                 std::size_t j) {
  return std::memcmp(&a[i * kRecord.record_floats()], &b[j * kRecord.record_floats()],
                     kRecord.record_bytes()) == 0;
}

TEST_P(BackendConformance, MergeIsTheWeightedMean) {
  for (const double deviation : {1.0, 20.0, 300.0}) {
    MergeCase merge_case(3, deviation, 31);
    const auto buffer = device(merge_case.states);
    const std::vector<MergeOp> ops{{.dst = 2, .left = 0, .right = 1, .tokens = 1}};
    backend().call(MergeArgs{.ops = ops, .shape = kRecord, .states = buffer->as<float>()});
    MergeCase merged = merge_case;
    merged.states = host<float>(*buffer);
    for (int h = 0; h < kRecord.heads; ++h) {
      const double l = merge_case.lse(0, h);
      const double r = merge_case.lse(1, h);
      const double max = std::max(l, r);
      const double wl = std::exp(l - max);
      const double wr = std::exp(r - max);
      // One exp (2 ulp = 4 kU) on an argument rounded once (kU |l - r|, where the weight counts:
      // below e^-17 it is less than kU itself), log and two roundings.
      const double bound = kU * (8 + std::min(17.0, std::abs(l - r)));
      EXPECT_NEAR(merged.lse(2, h), max + std::log(wl + wr), bound + 2 * kU * std::abs(max));
      for (int c = 0; c < kRecord.width; ++c) {
        const double a = merge_case.o(0, h, c);
        const double b = merge_case.o(1, h, c);
        EXPECT_NEAR(merged.o(2, h, c), (wl * a + wr * b) / (wl + wr),
                    2 * bound * std::max(std::abs(a), std::abs(b)));
      }
    }
    EXPECT_TRUE(same_record(merged.states, 0, merge_case.states, 0)) << "left was changed";
    EXPECT_TRUE(same_record(merged.states, 1, merge_case.states, 1)) << "right was changed";
  }
}

TEST_P(BackendConformance, MergeWithTheEmptySetKeepsTheOtherSidesBits) {
  for (const float empty : {-kInfinity, kInfinity, kNaN}) {
    for (const float garbage : {0.0F, kNaN, kInfinity}) {
      MergeCase merge_case(6, 1, 32);
      merge_case.fill(1, garbage, empty);
      merge_case.fill(2, garbage, empty);
      const auto buffer = device(merge_case.states);
      const std::vector<MergeOp> ops{{.dst = 3, .left = 0, .right = 1, .tokens = 1},
                                     {.dst = 4, .left = 1, .right = 0, .tokens = 1},
                                     {.dst = 5, .left = 1, .right = 2, .tokens = 1}};
      backend().call(MergeArgs{.ops = ops, .shape = kRecord, .states = buffer->as<float>()});
      const std::vector<float> merged = host<float>(*buffer);
      EXPECT_TRUE(same_record(merged, 3, merge_case.states, 0)) << empty << ", " << garbage;
      EXPECT_TRUE(same_record(merged, 4, merge_case.states, 0)) << empty << ", " << garbage;
      MergeCase none(1, 1, 33);
      none.fill(0, 0.0F, -kInfinity);
      EXPECT_TRUE(same_record(merged, 5, none.states, 0)) << empty << ", " << garbage;
    }
  }
}

TEST_P(BackendConformance, MergeSkipsASideOfWeightZero) {
  MergeCase merge_case(4, 1, 34);
  merge_case.fill(1, kNaN, -4000.0F);  // exp(-4000 - lse) is 0 in every precision
  const auto buffer = device(merge_case.states);
  const std::vector<MergeOp> ops{{.dst = 2, .left = 0, .right = 1, .tokens = 1},
                                 {.dst = 3, .left = 1, .right = 0, .tokens = 1}};
  backend().call(MergeArgs{.ops = ops, .shape = kRecord, .states = buffer->as<float>()});
  const std::vector<float> merged = host<float>(*buffer);
  EXPECT_TRUE(same_record(merged, 2, merge_case.states, 0));
  EXPECT_TRUE(same_record(merged, 3, merge_case.states, 0));
}

TEST_P(BackendConformance, MergeInPlaceAndInBatchesGivesTheSameBits) {
  MergeCase merge_case(12, 2, 35);
  const auto run = [&](const std::vector<MergeOp>& ops) {
    const auto buffer = device(merge_case.states);
    backend().call(MergeArgs{.ops = ops, .shape = kRecord, .states = buffer->as<float>()});
    return host<float>(*buffer);
  };
  const auto apart = run({{.dst = 8, .left = 0, .right = 4, .tokens = 4}});
  const auto in_place = run({{.dst = 0, .left = 0, .right = 4, .tokens = 4}});
  const auto onto_right = run({{.dst = 4, .left = 0, .right = 4, .tokens = 4}});
  const auto one_by_one = run({{.dst = 9, .left = 1, .right = 5, .tokens = 1},
                               {.dst = 11, .left = 3, .right = 7, .tokens = 1},
                               {.dst = 8, .left = 0, .right = 4, .tokens = 1},
                               {.dst = 10, .left = 2, .right = 6, .tokens = 1}});
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(same_record(in_place, i, apart, 8 + i)) << i;
    EXPECT_TRUE(same_record(onto_right, 4 + i, apart, 8 + i)) << i;
    EXPECT_TRUE(same_record(one_by_one, 8 + i, apart, 8 + i)) << i;
  }
}

TEST_P(BackendConformance, MergeOfATreeGivesTheBitsOfItsOps) {
  // Merges of two tokens each: six leaves from record 8 on, in place; 0 before all of them, to 24;
  // a copy.
  MergeCase merge_case(26, 2, 37);
  merge_case.fill(11, kNaN, -kInfinity);
  std::vector<MergeOp> ops{{22, 4, kNoState, 2, 0}, {8, 8, 10, 2, 0}, {12, 12, 14, 2, 0},
                           {16, 16, 18, 2, 0},      {8, 8, 12, 2, 1}, {8, 8, 16, 2, 2},
                           {24, 0, 8, 2, 3}};
  const auto buffer = device(merge_case.states);
  backend().call(MergeArgs{
      .ops = ops, .shape = kRecord, .states = buffer->as<float>(), .levels = ops.back().level + 1});
  const std::vector<float> together = host<float>(*buffer);
  backend().upload(buffer->data(), std::as_bytes(std::span(merge_case.states)));
  for (MergeOp& op : ops) {
    op.level = 0;
    backend().call(
        MergeArgs{.ops = std::span(&op, 1), .shape = kRecord, .states = buffer->as<float>()});
  }
  const std::vector<float> apart = host<float>(*buffer);
  for (std::size_t i = 22; i < 26; ++i) EXPECT_TRUE(same_record(together, i, apart, i)) << i;
}

TEST_P(BackendConformance, MergeWithoutARightSideCopiesTheLeftOne) {
  MergeCase merge_case(4, 1, 36);
  merge_case.fill(1, kNaN, kNaN);  // its contents do not matter
  const auto buffer = device(merge_case.states);
  const std::vector<MergeOp> ops{{.dst = 2, .left = 0, .tokens = 2},
                                 {.dst = 0, .left = 0, .tokens = 2}};
  backend().call(MergeArgs{.ops = ops, .shape = kRecord, .states = buffer->as<float>()});
  const std::vector<float> merged = host<float>(*buffer);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(same_record(merged, i, merge_case.states, i % 2)) << i;
  }
}

}  // namespace
}  // namespace tributary::test
