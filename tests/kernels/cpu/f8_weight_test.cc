// Weights kept in FP8: they come back to the bit, and products have the bits of the widened weight.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"
#include "kernels/cpu/amx_attend.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/f8_code.h"
#include "kernels/cpu/packed_weight.h"
#include "tests/kernels/cpu/emulated_table.h"

namespace tributary::cpu {
namespace {

std::uint32_t bits_of(float value) {
  return std::bit_cast<std::uint32_t>(value);
}

TEST(F8Code, EveryCodeWidensToNumberTimesScale) {
  // Products that are normal, subnormal and 0; the largest scale that can be stored.
  for (const float scale : {1.0F, -1.0F, 0.1F, 3e-4F, 0x1p-9F, 1e-37F, -1e-40F, 0x1p-149F, 0.0F,
                            std::nextafter(0x1p8F, 0.0F)}) {
    ASSERT_TRUE(f8_scale_fits(scale));
    for (int code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::uint8_t>(code);
      const float value = f8_e4m3_to_float(byte) * scale;
      if (std::isnan(value)) {
        EXPECT_FALSE(f8_code_of(value, scale)) << code;
        continue;
      }
      EXPECT_EQ(bits_of(f8_widen(byte, f8_stored_scale(scale))), bits_of(value))
          << code << " x " << scale;
      const auto found = f8_code_of(value, scale);
      if (std::abs(value) < std::numeric_limits<float>::min() && value != 0 && !found) continue;
      ASSERT_TRUE(found) << code << " x " << scale;
      EXPECT_EQ(bits_of(f8_e4m3_to_float(*found) * scale), bits_of(value))
          << code << " x " << scale;
      if (std::isnormal(value)) {
        EXPECT_EQ(*found, byte) << scale;
      }
    }
  }
  for (const float value : {449.0F, 480.0F, 1e30F, -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN(), 0x1p-10F, 1.0625F}) {
    EXPECT_FALSE(f8_code_of(value, 1)) << value;
  }
  EXPECT_FALSE(f8_scale_fits(0x1p8F));
  EXPECT_FALSE(f8_scale_fits(std::numeric_limits<float>::quiet_NaN()));
}

/// A matrix as published in FP8 and widened: every finite code occurs, with any scales.
struct Published {
  std::int64_t rows, cols;
  std::vector<float> values, scales;

  Published(std::int64_t its_rows, std::int64_t its_cols, std::uint32_t seed)
      : rows(its_rows), cols(its_cols) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1e-3F);
    const std::int64_t across = ceil_div(cols, kScaleBlock);
    scales.resize(static_cast<std::size_t>(ceil_div(rows, kScaleBlock) * across));
    for (float& scale : scales) scale = normal(random);
    std::uint8_t code = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t col = 0; col < cols; ++col) {
        if ((++code & 0x7fU) == 0x7f) ++code;  // not NaN
        values.push_back(
            f8_e4m3_to_float(code) *
            scales[static_cast<std::size_t>(row / kScaleBlock * across + col / kScaleBlock)]);
      }
    }
  }
};

WeightView whole(const Published& matrix) {
  return {.data = matrix.values.data(),
          .rows = matrix.rows,
          .cols = matrix.cols,
          .row_stride = matrix.cols,
          .scales = {.data = matrix.scales.data(), .cols = matrix.cols}};
}

/// Heads of `nope` + `value` rows: the first ones transposed (W_UK), or the others (W_UV).
WeightView of_heads(const Published& matrix, std::int64_t nope, std::int64_t value, bool keys) {
  WeightView view{.data = matrix.values.data() + (keys ? 0 : nope * matrix.cols),
                  .batch = matrix.rows / (nope + value),
                  .rows = keys ? matrix.cols : value,
                  .cols = keys ? nope : matrix.cols,
                  .batch_stride = (nope + value) * matrix.cols,
                  .row_stride = keys ? 1 : matrix.cols,
                  .col_stride = keys ? matrix.cols : 1};
  view.scales = {
      .data = matrix.scales.data(), .cols = matrix.cols, .first = keys ? 0 : nope * matrix.cols};
  return view;
}

/// The same for a token whatever their number.
std::vector<float> activations(const WeightView& view, std::int64_t tokens) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<std::size_t>(tokens * view.batch * view.cols));
  for (float& value : x) value = normal(random);
  return x;
}

std::vector<float> product(Backend& backend, const WeightView& view, std::int64_t tokens) {
  const auto weight = backend.make_weight(view);
  const std::vector<float> x = activations(view, tokens);
  std::vector<float> y(static_cast<std::size_t>(tokens * view.batch * view.rows));
  backend.call(GemmArgs{.weight = weight.get(),
                        .tokens = tokens,
                        .x = x.data(),
                        .x_token_stride = view.batch * view.cols,
                        .x_batch_stride = view.cols,
                        .y = y.data(),
                        .y_token_stride = view.batch * view.rows,
                        .y_batch_stride = view.rows});
  return y;
}

WeightView without_scales(WeightView view) {
  view.scales = {};
  return view;
}

DType stored_as(const WeightView& view) {
  ThreadPool pool(2);
  return PackedWeight(view, pool).dtype();
}

/// Blocks of 128 rows and columns, whole and in part, transposed, and between others' heads.
struct Views {
  Published odd{150, 333, 1}, one{1, 1, 2}, wide{129, 700, 3}, heads{std::int64_t{4} * 256, 200, 4};
  // Heads whose blocks begin and end within those of 128 rows, at multiples of 64.
  Published uneven{std::int64_t{3} * 448, 130, 5};
  std::vector<WeightView> all = {
      whole(odd),
      whole(one),
      whole(wide),
      of_heads(heads, 128, 128, true),
      of_heads(heads, 128, 128, false),
      of_heads(uneven, 192, 256, true),
      of_heads(uneven, 192, 256, false),
  };
};

TEST(F8Weight, ProductsHaveTheBitsOfTheWidenedWeight) {
  const Views built;
  const std::vector<WeightView>& views = built.all;
  for (const WeightView& view : views) EXPECT_EQ(stored_as(view), DType::kF8E4M3);

  std::vector<std::pair<std::string, std::unique_ptr<Backend>>> backends;
  for (const std::string_view name : cpu_instruction_sets()) {
    if (name == kAmxTableName) continue;  // as exact, but of other bits: below
    for (const int threads : {1, 3}) {
      backends.emplace_back(
          name, make_cpu_backend({.threads = threads, .instruction_set = std::string(name)}));
    }
  }
  for (const auto& [name, backend] : backends) {
    for (const WeightView& view : views) {
      // Up to 16 as a batch of decode has, and more than a block of tokens.
      for (const std::int64_t tokens : {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 130}) {
        const std::vector<float> expected = product(*backend, without_scales(view), tokens);
        const std::vector<float> got = product(*backend, view, tokens);
        ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
            << name << ", " << view.rows << " x " << view.cols << ", " << tokens << " tokens";
      }
    }
  }
}

TEST(F8Weight, ProductsOnTilesAreNearFloat64AndDoNotDependOnOtherTokens) {
  const KernelTable* emulated = emulated_amx_table();
  if (emulated == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  const auto backend = make_table_backend(*emulated, 2);
  constexpr std::int64_t kTokens = 130;  // more than a block of tokens, and than a tile of them
  const Views built;
  for (const WeightView& view : built.all) {
    const std::int64_t record = view.batch * view.rows;
    const std::vector<float> y = product(*backend, view, kTokens);
    const std::vector<float> x = activations(view, kTokens);
    const auto* values = static_cast<const float*>(view.data);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t br = 0; br < record; ++br) {
        const std::int64_t b = br / view.rows;
        const std::int64_t row = br % view.rows;
        double sum = 0;
        double norm_w = 0;
        double norm_x = 0;
        for (std::int64_t c = 0; c < view.cols; ++c) {
          const double w =
              values[b * view.batch_stride + row * view.row_stride + c * view.col_stride];
          const double xi = x[static_cast<std::size_t>((t * view.batch + b) * view.cols + c)];
          sum += w * xi;
          norm_w += w * w;
          norm_x += xi * xi;
        }
        // As of any product (projection_conformance.cc).
        ASSERT_NEAR(y[static_cast<std::size_t>(t * record + br)], sum,
                    4 * 0x1p-24 * std::sqrt(norm_w * norm_x))
            << view.rows << " x " << view.cols << ", token " << t;
      }
    }
    for (const std::int64_t tokens : {1, 2, 7, 15, 16, 17, 31, 33, 128, 129}) {
      const std::vector<float> fewer = product(*backend, view, tokens);
      ASSERT_EQ(std::memcmp(fewer.data(), y.data(), fewer.size() * sizeof(float)), 0) << tokens;
    }
  }
}

TEST(F8Weight, TilesMultiplyEveryCodeExactly) {
  // One activation of 1: the product is the code's number times the scale, in whichever place.
  const KernelTable* emulated = emulated_amx_table();
  if (emulated == nullptr) GTEST_SKIP() << "NOT TESTED: no AVX-512 here";
  const auto backend = make_table_backend(*emulated, 1);
  const Published matrix(150, 133, 8);
  const auto weight = backend->make_weight(whole(matrix));
  for (const std::int64_t column : {0, 1, 31, 32, 63, 64, 127, 128, 132}) {
    std::vector<float> x(133);
    x[static_cast<std::size_t>(column)] = 1;
    std::vector<float> y(150);
    backend->call(GemmArgs{.weight = weight.get(),
                           .tokens = 1,
                           .x = x.data(),
                           .x_token_stride = 133,
                           .y = y.data(),
                           .y_token_stride = 150});
    for (std::int64_t row = 0; row < 150; ++row) {
      EXPECT_EQ(y[static_cast<std::size_t>(row)],
                matrix.values[static_cast<std::size_t>(row * 133 + column)])
          << row << ", " << column;
    }
  }
}

TEST(F8Weight, WhatFp8DoesNotHoldIsKeptAsItWas) {
  // Each change is in the last element, which is packed last, and reaches the product unrounded.
  const Published matrix(200, 300, 6);
  const auto changed = [&](float value) {
    Published copy = matrix;
    copy.values.back() = value;
    return copy;
  };
  const auto backend = make_cpu_backend({.threads = 2, .instruction_set = ""});
  const float kInf = std::numeric_limits<float>::infinity();
  const float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const float value : {std::nextafter(matrix.values.back(), kInf), kInf, -kInf, kNan}) {
    const Published other = changed(value);
    EXPECT_EQ(stored_as(whole(other)), DType::kF32) << value;
    const std::vector<float> expected = product(*backend, without_scales(whole(other)), 3);
    const std::vector<float> got = product(*backend, whole(other), 3);
    EXPECT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0) << value;
  }
  // -0 and 0 are codes of their own.
  EXPECT_EQ(stored_as(whole(changed(-0.0F))), DType::kF8E4M3);
  EXPECT_EQ(stored_as(whole(changed(0.0F))), DType::kF8E4M3);

  // Scales of other values, a scale that cannot be stored, blocks that end within 64 columns.
  Published wrong = matrix;
  wrong.scales.back() *= 1.01F;
  EXPECT_EQ(stored_as(whole(wrong)), DType::kF32);
  Published large = matrix;
  for (float& scale : large.scales) scale = 0x1p9F;
  for (float& value : large.values) value = 0x1p9F;
  EXPECT_EQ(stored_as(whole(large)), DType::kBF16);
  const Published uneven(3 * 200, 64, 7);
  EXPECT_EQ(stored_as(of_heads(uneven, 100, 100, true)), DType::kF32);
  // Values that bf16 holds as well take the narrower form.
  Published powers = matrix;
  for (float& value : powers.values) value = 0.5F;
  for (float& scale : powers.scales) scale = 0x1p-4F;
  EXPECT_EQ(stored_as(whole(powers)), DType::kF8E4M3);
  EXPECT_EQ(stored_as(without_scales(whole(powers))), DType::kBF16);
}

}  // namespace
}  // namespace tributary::cpu
