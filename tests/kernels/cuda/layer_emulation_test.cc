// The kernels of a layer besides attention, on emulated threads (emulation/simt.h says what that
// shows), beside the reference backend.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/layer/convert.h"
#include "kernels/cuda/layer/copy_records.h"
#include "kernels/cuda/layer/dense.h"
#include "kernels/cuda/layer/pack.h"
#include "kernels/cuda/layer/rms_norm.h"
#include "kernels/cuda/layer/rotation.h"
#include "kernels/reference/reference_backend.h"
#include "tests/kernels/cuda/emulation/simt.h"

namespace tributary::test {
namespace {

std::vector<float> normal(std::size_t count, std::uint32_t seed, float deviation = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution(0, deviation);
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

/// Bits, so that NaN equals NaN.
template <typename T>
void expect_same_bits(const std::vector<T>& got, const std::vector<T>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(T)), 0);
}

TEST(CudaAppend, RowsGoToTheirSlots) {
  constexpr std::size_t kRow = 48;  // bytes
  constexpr int kPages = 3;
  std::vector<std::uint8_t> source(5 * 64);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::uint8_t>(i + 1);
  const std::vector<AppendTask> tasks{{0, 2, 63, 4}, {1, 0, 0, 0}, {1, 1, 7, 2}};
  const std::vector<std::int32_t> item_layer{1, 0};
  std::vector<std::uint8_t> expected(2 * kPages * kPageTokens * kRow, 0xee);
  for (const AppendTask& task : tasks) {
    const auto row = static_cast<std::size_t>(
        (item_layer[static_cast<std::size_t>(task.item)] * kPages + task.page) * kPageTokens +
        task.slot);
    std::memcpy(&expected[row * kRow], &source[static_cast<std::size_t>(task.source) * 64], kRow);
  }
  for (const bool wide : {false, true}) {
    std::vector<std::uint8_t> cache(expected.size(), 0xee);
    const cuda::AppendLaunch launch{.tasks = tasks.data(),
                                    .count = 3,
                                    .item_layer = item_layer.data(),
                                    .source = reinterpret_cast<const std::byte*>(source.data()),
                                    .source_stride_bytes = 64,
                                    .cache = reinterpret_cast<std::byte*>(cache.data()),
                                    .pages = kPages,
                                    .row_bytes = kRow};
    simt::run({.blocks = 3, .threads = cuda::kCopyThreads}, [&] {
      wide ? cuda::append_block<cuda::ptx::Chunk>(launch)
           : cuda::append_block<unsigned char>(launch);
    });
    expect_same_bits(cache, expected);
  }
}

TEST(CudaGather, RecordsInAnyOrder) {
  const std::vector<float> source = normal(7 * 2000, 3);
  const std::vector<std::int64_t> index{6, 0, 3, 3};
  std::vector<float> expected;
  for (const std::int64_t i : index) {
    expected.insert(expected.end(), source.begin() + i * 2000, source.begin() + (i + 1) * 2000);
  }
  for (const unsigned shares : {1U, 3U}) {
    std::vector<float> got(expected.size());
    const cuda::GatherLaunch launch{.index = index.data(),
                                    .count = 4,
                                    .src = reinterpret_cast<const std::byte*>(source.data()),
                                    .dst = reinterpret_cast<std::byte*>(got.data()),
                                    .record_bytes = 2000 * sizeof(float)};
    simt::run({.blocks = 4, .blocks_y = shares, .threads = cuda::kCopyThreads},
              [&] { cuda::gather_block<cuda::ptx::Chunk>(launch, shares); });
    expect_same_bits(got, expected);
  }
}

TEST(CudaConvert, RoundsAsEveryBackendDoes) {
  std::vector<float> values = normal(2 * 700, 5, 1e3F);
  values[3] = std::numeric_limits<float>::quiet_NaN();
  values[4] = std::numeric_limits<float>::infinity();
  values[5] = 3.4e38F;  // rounds to infinity
  values[6] = 1e-42F;   // subnormal
  std::vector<bf16> halves(2 * 710, bf16{0x1234});
  std::vector<bf16> expected = halves;
  for (std::size_t i = 0; i < values.size(); ++i) {
    expected[i / 700 * 710 + i % 700] = to_bf16(values[i]);
  }
  const ConvertArgs args{.rows = 2,
                         .src = values.data(),
                         .src_row = plain_row(700),
                         .src_stride_bytes = 700 * sizeof(float),
                         .dst = halves.data(),
                         .dst_row = plain_row(700, DType::kBF16),
                         .dst_stride_bytes = 710 * sizeof(bf16)};
  simt::run({.blocks = 2, .blocks_y = 2, .threads = cuda::kConvertThreads},
            [&] { cuda::convert_block<float, bf16>(args, 2); });
  expect_same_bits(halves, expected);
}

TEST(CudaRmsNorm, IsTheReferencesInPlace) {
  const auto reference = make_reference_backend();
  for (const std::int64_t width : {1, 7, 576, 1536}) {
    std::vector<float> x = normal(static_cast<std::size_t>(3 * (width + 5)), 7, 3);
    std::vector<float> expected = x;
    const std::vector<float> weight = normal(static_cast<std::size_t>(width), 8);
    RmsNormArgs args{.tokens = 3,
                     .width = width,
                     .x = x.data(),
                     .x_token_stride = width + 5,
                     .weight = weight.data(),
                     .eps = 1e-6F,
                     .y = x.data(),
                     .y_token_stride = width + 5};
    simt::run({.blocks = 3, .threads = cuda::kNormThreads, .shared_bytes = cuda::kNormSharedBytes},
              [&] { cuda::rms_norm_block(args); });
    args.x = expected.data();
    args.y = expected.data();
    reference->call(args);
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(x[i], expected[i], 0x1p-23 * std::abs(expected[i])) << width;
    }
  }
}

TEST(CudaRope, IsTheReferencesAtLargePositionsInPlace) {
  const auto reference = make_reference_backend();
  for (const std::int64_t dim : {2, 64, 130}) {
    const std::vector<std::int64_t> positions{0, 1, 163839, 1000000};
    std::vector<double> frequencies;
    for (std::int64_t i = 0; i < dim / 2; ++i) {
      frequencies.push_back(
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
    }
    const std::int64_t head_stride = dim + 3;
    std::vector<float> x = normal(static_cast<std::size_t>(4 * 3 * head_stride), 9);
    std::vector<float> expected = x;
    const cuda::RopeLaunch launch{.positions = positions.data(),
                                  .frequencies = frequencies.data(),
                                  .tokens = 4,
                                  .pairs = dim / 2,
                                  .heads = 3,
                                  .x = x.data(),
                                  .x_token_stride = 3 * head_stride,
                                  .x_head_stride = head_stride,
                                  .y = x.data(),
                                  .y_token_stride = 3 * head_stride,
                                  .y_head_stride = head_stride};
    simt::run({.blocks = 4, .threads = cuda::kRopeThreads, .shared_bytes = cuda::kRopeSharedBytes},
              [&] { cuda::rope_block(launch); });
    reference->call(RopeArgs{.positions = positions,
                             .frequencies = frequencies,
                             .heads = 3,
                             .x = expected.data(),
                             .x_token_stride = 3 * head_stride,
                             .x_head_stride = head_stride,
                             .y = expected.data(),
                             .y_token_stride = 3 * head_stride,
                             .y_head_stride = head_stride});
    for (std::size_t i = 0; i < x.size(); ++i) {
      // For two products of numbers up to about 5: the rounding of cos and sin, and of each step.
      ASSERT_NEAR(x[i], expected[i], 4 * 0x1p-24 * 5) << dim;
    }
  }
}

TEST(CudaPack, ThreePartsAddUpToEveryBit) {
  constexpr std::int64_t kTokens = 3, kBatch = 2, kWidth = 70, kRows = 16, kCols = 72;
  std::vector<float> x = normal(kTokens * kBatch * kWidth, 11);
  x[0] = std::numeric_limits<float>::infinity();
  x[1] = std::numeric_limits<float>::quiet_NaN();
  x[2] = std::nextafter(1.0F, 2.0F);
  x[3] = 0x1.fffffep-100F;
  std::vector<bf16> packed(static_cast<std::size_t>(kBatch * cuda::kParts * kRows * kCols),
                           bf16{0x7fff});
  const cuda::PackLaunch pack{.x = x.data(),
                              .x_token_stride = kBatch * kWidth,
                              .x_batch_stride = kWidth,
                              .tokens = kTokens,
                              .batch = kBatch,
                              .width = kWidth,
                              .rows = kRows,
                              .cols = kCols,
                              .packed = reinterpret_cast<std::byte*>(packed.data())};
  simt::run({.blocks = kRows, .blocks_y = kBatch, .threads = cuda::kPackThreads},
            [&] { cuda::pack_parts_block(pack); });
  std::vector<float> products(packed.size());
  for (std::size_t i = 0; i < packed.size(); ++i) products[i] = to_float(packed[i]);
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t c = 0; c < kCols; ++c) {
        const auto part = [&](std::int64_t i) {
          return products[static_cast<std::size_t>(((b * cuda::kParts + i) * kRows + r) * kCols +
                                                   c)];
        };
        if (r >= kTokens || c >= kWidth) {
          ASSERT_EQ(std::abs(part(0)) + std::abs(part(1)) + std::abs(part(2)), 0);
        }
      }
    }
  }
  // The product with the identity is the packed operand itself: the output equals the input.
  std::vector<float> y(x.size(), -7);
  const cuda::UnpackLaunch unpack{.packed = products.data(),
                                  .parts = cuda::kParts,
                                  .rows = kRows,
                                  .cols = kCols,
                                  .tokens = kTokens,
                                  .batch = kBatch,
                                  .width = kWidth,
                                  .y = y.data(),
                                  .y_token_stride = kBatch * kWidth,
                                  .y_batch_stride = kWidth};
  simt::run({.blocks = kTokens, .blocks_y = kBatch, .threads = cuda::kPackThreads},
            [&] { cuda::unpack_block(unpack); });
  EXPECT_TRUE(std::isnan(y[1]));
  y[1] = x[1];
  expect_same_bits(y, x);
}

TEST(CudaDense, IsTheReferences) {
  const auto reference = make_reference_backend();
  constexpr int kHeads = 2;
  for (const std::int64_t keys : {0, 5, 300}) {
    const std::vector<float> q = normal(3 * kHeads * 24, 13);
    const std::vector<float> kv = normal(static_cast<std::size_t>(keys) * kHeads * 36, 14);
    const std::vector<float> k_pe = normal(static_cast<std::size_t>(keys) * 8, 15);
    const StateShape shape{kHeads, 20};
    std::vector<float> states(3 * shape.record_floats(), -7);
    std::vector<float> expected = states;
    // The first token sees nothing, the others all but the last ones.
    DenseAttendArgs args{.tokens = 3,
                         .keys = keys,
                         .heads = kHeads,
                         .qk_nope_head_dim = 16,
                         .qk_rope_head_dim = 8,
                         .v_head_dim = 20,
                         .query_position = keys == 5 ? 9 : 290,
                         .key_position = 10,
                         .softmax_scale = 0.2F,
                         .q = q.data(),
                         .kv = kv.data(),
                         .k_pe = k_pe.data(),
                         .states = states.data()};
    simt::run({.blocks = 3,
               .blocks_y = kHeads,
               .threads = cuda::kDenseThreads,
               .shared_bytes = cuda::kDenseSharedBytes},
              [&] { cuda::attend_dense_block(args); });
    args.states = expected.data();
    reference->call(args);
    for (std::size_t i = 0; i < states.size(); ++i) {
      if (std::isinf(expected[i])) {
        ASSERT_EQ(states[i], expected[i]);
      } else {
        // Sums of 24 and of some 300 terms of size 1 and below, in fp32.
        ASSERT_NEAR(states[i], expected[i], 2e-5) << keys << " keys, element " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tributary::test
