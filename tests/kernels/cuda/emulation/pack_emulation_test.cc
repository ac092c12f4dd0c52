// The operands of products on emulated threads. simt.h says what that shows. A layer's other
// kernels are in the conformance suite of backends, on the emulated device.
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/cuda/layer/pack.h"
#include "tests/kernels/cuda/emulation/simt.h"

namespace tributary::test {
namespace {

TEST(CudaPack, ThreePartsAddUpToEveryBit) {
  constexpr std::int64_t kTokens = 3, kBatch = 2, kWidth = 70, kRows = 16, kCols = 72;
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> x(kTokens * kBatch * kWidth);
  for (float& value : x) value = normal(random);
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
  EXPECT_EQ(std::memcmp(y.data(), x.data(), x.size() * sizeof(float)), 0);
}

}  // namespace
}  // namespace tributary::test
