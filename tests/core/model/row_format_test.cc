// Every row format: its id, its name, its bytes, and rows that are written and read back.
#include "core/model/row_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "core/base/dtype.h"
#include "core/model/cut_values.h"
#include "core/workload/generator.h"
#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

using testing::HasSubstr;

constexpr RowFormat kUnknown{200};

/// DeepSeek's row, which every format can store.
RowLayout layout_of(RowFormat format) {
  return {format, 512, 64};
}

std::vector<float> some_rows(std::size_t count, const RowLayout& layout) {
  std::vector<float> values(count * layout.values());
  for (std::size_t row = 0; row < count; ++row) {
    TokenGenerator(1).row(0, 0, static_cast<std::int64_t>(row),
                          std::span(values).subspan(row * layout.values(), layout.values()));
  }
  return values;
}

TEST(RowFormatTest, IdsAndNamesAreTheirOwn) {
  std::set<int> ids;
  std::set<std::string> names;
  for (const RowFormat format : row_formats()) {
    ids.insert(format.id);
    names.insert(row_format_name(format));
    EXPECT_EQ(find_row_format(row_format_name(format)), format);
  }
  EXPECT_EQ(ids.size(), row_formats().size());
  EXPECT_EQ(names.size(), row_formats().size());
  // These ids are in messages and files: they never change.
  EXPECT_EQ(RowFormat::kF32.id, 1);
  EXPECT_EQ(RowFormat::kBF16.id, 2);
  EXPECT_EQ(RowFormat::kFp8DsMla.id, 3);
  EXPECT_EQ(RowFormat::kFp8.id, 4);
  EXPECT_EQ(row_format_names(row_formats().first(2), "|"), "bf16|f32");
}

TEST(RowFormatTest, UnknownOnesAreNamedAndRefused) {
  EXPECT_EQ(row_format_name(kUnknown), "unknown");
  EXPECT_FALSE(find_row_format("f64"));
  EXPECT_FALSE(plain_elements(kUnknown));
  const RowLayout layout = layout_of(kUnknown);
  EXPECT_EQ(layout.bytes(), 0U);
  std::vector<float> values(layout.values());
  EXPECT_EQ(code_of([&] { layout.encode(values, nullptr); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { layout.decode(nullptr, values); }), ErrorCode::kInvalidArgument);
  EXPECT_THAT(message_of([&] { check_row_layout(layout); }),
              HasSubstr("row format 200 is none of bf16, f32"));
}

TEST(RowFormatTest, BytesOfDeepSeeksRow) {
  EXPECT_EQ(layout_of(RowFormat::kBF16).bytes(), 1152U);
  EXPECT_EQ(layout_of(RowFormat::kF32).bytes(), 2304U);
  EXPECT_EQ(layout_of(RowFormat::kFp8DsMla).bytes(), 656U);
  EXPECT_EQ(layout_of(RowFormat::kFp8).bytes(), 576U);
}

RowFormat fp8_with(float scale) {
  RowFormat format = RowFormat::kFp8;
  format.scale = scale;
  return format;
}

TEST(RowFormatTest, AScaleIsPartOfTheNameAndOfTheFormat) {
  EXPECT_EQ(row_format_name(fp8_with(1)), "fp8");
  EXPECT_EQ(row_format_name(fp8_with(0.0625F)), "fp8@0.0625");
  EXPECT_NE(fp8_with(0.5F), RowFormat::kFp8);
  for (const float scale : {0.1F, 1e-3F, 3.0F, 1e-40F, 3e38F}) {
    EXPECT_EQ(find_row_format(row_format_name(fp8_with(scale))), fp8_with(scale)) << scale;
    EXPECT_TRUE(is_known(fp8_with(scale)));
  }
  EXPECT_EQ(find_row_format("fp8@1"), RowFormat::kFp8);
  for (const char* bad : {"fp8@", "fp8@0", "fp8@-1", "fp8@inf", "fp8@nan", "fp8@0x1", "fp8@1 ",
                          "fp8@@1", "@1", "bf16@1", "fp8_ds_mla@2"}) {
    EXPECT_FALSE(find_row_format(bad)) << bad;
  }
  RowFormat scaled = RowFormat::kBF16;
  scaled.scale = 0.5F;
  EXPECT_FALSE(is_known(scaled));
  EXPECT_THAT(message_of([&] {
                check_row_layout({scaled, 512, 64});
              }),
              HasSubstr("rows of bf16 with scale 0.5, expected 1"));
  EXPECT_THAT(message_of([] {
                check_row_layout({fp8_with(0), 512, 64});
              }),
              HasSubstr("rows of fp8 with scale 0, expected a positive, finite one"));
}

TEST(RowFormatTest, PlainRowsAreTheirElements) {
  for (const auto& [format, type] :
       {std::pair(RowFormat::kF32, DType::kF32), std::pair(RowFormat::kBF16, DType::kBF16)}) {
    EXPECT_EQ(plain_elements(format), type);
    EXPECT_EQ(plain_row(576, type), (RowLayout{format, 576, 0}));
    const RowLayout layout = layout_of(format);
    std::vector<float> values = some_rows(1, layout);
    const std::vector<float> before = values;
    layout.round(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
      EXPECT_EQ(values[i], type == DType::kF32 ? before[i] : to_float(to_bf16(before[i])));
    }
  }
}

TEST(RowFormatTest, WhatComesBackStays) {
  for (const RowFormat format : row_formats()) {
    const RowLayout layout = layout_of(format);
    check_row_layout(layout);
    const std::vector<float> values = some_rows(3, layout);
    std::vector<std::byte> rows(3 * layout.bytes() + 1, std::byte{0x5a});
    std::vector<float> back(values.size());
    layout.encode(values, rows.data());
    EXPECT_EQ(rows.back(), std::byte{0x5a}) << "nothing behind the rows is written";
    layout.decode(rows.data(), back);
    // Once rounded, a row is stored as it is.
    std::vector<float> again = back;
    layout.round(again);
    EXPECT_EQ(again, back) << row_format_name(format);
    // And a row does not depend on its neighbours.
    std::vector<float> second(values.begin() + 576, values.begin() + 1152);
    layout.round(second);
    EXPECT_TRUE(std::equal(second.begin(), second.end(), back.begin() + 576));
  }
}

TEST(RowFormatTest, PlainRowsOfOtherTypesOrOfNothingAreRefused) {
  EXPECT_THAT(message_of([] { (void)plain_row(8, DType::kF64); }), HasSubstr("f64"));
  EXPECT_THAT(message_of([] { (void)plain_row(0); }), HasSubstr("a row of 0 values"));
}

TEST(RowFormatTest, PartsOfRowsAreRefused) {
  const RowLayout layout = layout_of(RowFormat::kBF16);
  std::vector<float> values(layout.values() + 1);
  std::vector<std::byte> rows(2 * layout.bytes());
  EXPECT_EQ(code_of([&] { layout.encode(values, rows.data()); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([&] { layout.decode(rows.data(), values); }), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of([] {
              check_row_layout({RowFormat::kBF16, 0, 64});
            }),
            ErrorCode::kInvalidArgument);
}

/// The nearest number of e4m3, of two the one whose code is even: by comparison with all.
std::uint8_t nearest_code(float value) {
  std::uint8_t best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const auto byte = static_cast<std::uint8_t>(code);
    const double now = std::abs(f8_e4m3_to_float(byte) - static_cast<double>(std::abs(value)));
    const double then = std::abs(f8_e4m3_to_float(best) - static_cast<double>(std::abs(value)));
    if (now < then || (now == then && code % 2 == 0)) best = byte;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(value) ? 0x80 : 0));
}

TEST(Fp8Codes, AreTheNumbersOfTheFormat) {
  for (int code = 0; code < 0x80; ++code) {
    const int exponent = code >> 3;
    const double mantissa = code % 8 / 8.0;
    const float number = static_cast<float>(exponent == 0 ? std::ldexp(mantissa, -6)
                                                          : std::ldexp(1 + mantissa, exponent - 7));
    const auto bits = code == 0x7f ? 0x7fc00000U : std::bit_cast<std::uint32_t>(number);
    for (const std::uint32_t sign : {0U, 1U}) {
      const float got = f8_e4m3_to_float(static_cast<std::uint8_t>(code | (sign << 7)));
      EXPECT_EQ(std::bit_cast<std::uint32_t>(got), bits | (sign << 31)) << code;
    }
  }
}

constexpr RowLayout kFp8Row{RowFormat::kFp8DsMla, 512, 64};

struct Fp8Row {
  std::vector<std::byte> bytes = std::vector<std::byte>(kFp8Row.bytes());

  [[nodiscard]] int code(std::size_t i) const { return std::to_integer<int>(bytes[i]); }
  [[nodiscard]] float scale(std::size_t tile) const {
    float scale = 0;
    std::memcpy(&scale, bytes.data() + 512 + 4 * tile, sizeof scale);
    return scale;
  }
  void set_scale(std::size_t tile, float scale) {
    std::memcpy(bytes.data() + 512 + 4 * tile, &scale, sizeof scale);
  }
};

TEST(Fp8DsMla, ATilesScaleIsTheSmallestPowerOfTwoThatHoldsIt) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> values(576);
  values[0] = 448.0F;     // tile 0: exactly fits
  values[128] = -450.0F;  // tile 1: no longer
  values[129] = 1.0F;
  values[256] = kInfinity;  // tile 2: not finite, and a small number
  values[257] = std::numeric_limits<float>::quiet_NaN();
  values[258] = 3.0F;
  values[512] = 0.1F;  // tile 3: zeros; k_pe is bf16
  Fp8Row row;
  kFp8Row.encode(values, row.bytes.data());
  EXPECT_EQ(row.scale(0), 1.0F);
  EXPECT_EQ(row.code(0), 0x7e);
  EXPECT_EQ(row.scale(1), 2.0F);
  EXPECT_EQ(row.code(128), 0x80 | nearest_code(225.0F));
  EXPECT_EQ(row.scale(2), 0x1p-7F);  // 3 = 384 x 2^-7
  EXPECT_EQ(row.code(256), 0x7f);
  EXPECT_EQ(row.code(257), 0x7f);
  EXPECT_EQ(row.code(258), nearest_code(384.0F));
  EXPECT_EQ(row.scale(3), 0x1p-22F) << "of 1e-4";
  EXPECT_EQ(row.code(384), 0);
  std::vector<float> back(576);
  kFp8Row.decode(row.bytes.data(), back);
  EXPECT_EQ(back[0], 448.0F);
  EXPECT_EQ(back[128], -448.0F);
  EXPECT_TRUE(std::isnan(back[256]));
  EXPECT_EQ(back[258], 3.0F);
  EXPECT_EQ(back[512], to_float(to_bf16(0.1F)));
}

TEST(Fp8DsMla, EveryNumberBecomesTheNearestCode) {
  // All of bf16 up to 448, 127 in a tile whose first number makes the scale 1.
  std::vector<float> values(576);
  std::size_t in_tile = 0;
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = to_float(bf16{static_cast<std::uint16_t>(bits)});
    const bool last = bits == 0xffff;
    if (std::abs(value) <= 448) values[++in_tile] = value;
    if (in_tile < 127 && !last) continue;
    values[0] = 448.0F;
    Fp8Row row;
    kFp8Row.encode(values, row.bytes.data());
    ASSERT_EQ(row.scale(0), 1.0F);
    for (std::size_t i = 0; i < 128; ++i) {
      ASSERT_EQ(row.code(i), nearest_code(values[i])) << values[i];
    }
    in_tile = 0;
  }
}

TEST(Fp8, EveryNumberBecomesTheNearestCode) {
  for (const float scale : {1.0F, 0.1F, 0x1p-4F, 3.0F}) {
    const RowLayout layout{fp8_with(scale), 1, 0};
    for (int bits = 0; bits < 0x10000; ++bits) {
      const float value = to_float(bf16{static_cast<std::uint16_t>(bits)});
      const float of_scale = value / scale;
      std::byte code{};
      layout.encode({&value, 1}, &code);
      const int sign = std::signbit(value) ? 0x80 : 0;
      int expected = 0x7f | sign;
      if (std::abs(of_scale) > 448) {
        expected = 0x7e | sign;
      } else if (!std::isnan(of_scale)) {
        expected = nearest_code(of_scale);
      }
      ASSERT_EQ(std::to_integer<int>(code), expected) << value << " with scale " << scale;
    }
  }
}

TEST(Fp8, AValueIsCodeTimesScaleRoundedToBf16) {
  const RowLayout layout{fp8_with(0.3F), 192, 64};
  std::vector<std::byte> row(layout.bytes());
  for (std::size_t i = 0; i < row.size(); ++i) row[i] = static_cast<std::byte>(i);
  std::vector<float> values(row.size());
  layout.decode(row.data(), values);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const float product = f8_e4m3_to_float(static_cast<std::uint8_t>(i)) * 0.3F;
    EXPECT_EQ(to_bf16(values[i]).bits, to_bf16(product).bits) << i;
  }
  EXPECT_EQ(layout.fault(row), "") << "any code is a value";
}

TEST(Fp8DsMla, AValueIsCodeTimesScaleRoundedToBf16) {
  Fp8Row row;
  for (std::size_t i = 0; i < 256; ++i) row.bytes[i] = static_cast<std::byte>(i);
  const std::vector<float> scales{0.3F, 2.5F, 1.0F, 1.0F};  // of other writers
  for (std::size_t tile = 0; tile < 4; ++tile) row.set_scale(tile, scales[tile]);
  std::vector<float> values(576);
  kFp8Row.decode(row.bytes.data(), values);
  for (std::size_t i = 0; i < 256; ++i) {
    const float expected =
        to_float(to_bf16(f8_e4m3_to_float(static_cast<std::uint8_t>(i)) * scales[i / 128]));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(values[i])) << i;
    } else {
      EXPECT_EQ(values[i], expected) << i;
    }
  }
}

TEST(RowFormat, ValuesWithoutACodeAreCounted) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> values{0, 448, -448, 449, 450, -451, kInf, -kInf, kNaN, 1e30F};
  const auto cut = [&](RowFormat format) {
    return cut_values({format, static_cast<int>(values.size()), 0}, values);
  };
  EXPECT_EQ(cut(RowFormat::kFp8), 5U) << "449 is 448 in bf16";
  EXPECT_EQ(cut(find_row_format("fp8@2").value()), 3U);
  EXPECT_EQ(cut(RowFormat::kFp8DsMla), 0U);
  EXPECT_EQ(cut(RowFormat::kBF16), 0U);
}

TEST(Fp8DsMla, FloatsAndTheirBf16GiveOneRow) {
  const std::vector<float> values = some_rows(2, kFp8Row);
  std::vector<float> halves = values;
  RowLayout{RowFormat::kBF16, 512, 64}.round(halves);
  std::vector<std::byte> of_floats(2 * kFp8Row.bytes());
  std::vector<std::byte> of_halves(of_floats.size());
  kFp8Row.encode(values, of_floats.data());
  kFp8Row.encode(halves, of_halves.data());
  EXPECT_EQ(of_floats, of_halves);
}

TEST(Fp8DsMla, WidthsAndScalesThatAreNoneAreNamed) {
  EXPECT_EQ(kFp8Row.bytes(), 656U);
  EXPECT_THAT(message_of([] {
                check_row_layout({RowFormat::kFp8DsMla, 96, 64});
              }),
              HasSubstr("rows of 96 + 64 values cannot be stored as fp8_ds_mla"));
  EXPECT_EQ(code_of([] {
              check_row_layout({RowFormat::kFp8DsMla, 128, 3});
            }),
            ErrorCode::kInvalidArgument);
  check_row_layout({RowFormat::kFp8DsMla, 256, 0});
  Fp8Row row;
  kFp8Row.encode(some_rows(1, kFp8Row), row.bytes.data());
  EXPECT_EQ(kFp8Row.fault(row.bytes), "");
  EXPECT_EQ(kFp8Row.fault({}), "");
  std::vector<std::byte> rows = row.bytes;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {0.0F, -1.0F, std::numeric_limits<float>::infinity(), nan}) {
    Fp8Row other = row;
    other.set_scale(2, bad);
    rows.resize(row.bytes.size());
    rows.insert(rows.end(), other.bytes.begin(), other.bytes.end());
    EXPECT_THAT(kFp8Row.fault(rows), HasSubstr("row 1: scale 2 is ")) << bad;
  }
  rows.pop_back();
  EXPECT_EQ(code_of([&] { static_cast<void>(kFp8Row.fault(rows)); }), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary
