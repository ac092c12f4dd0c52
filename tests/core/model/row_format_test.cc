// Every row format: its id, its name, its bytes, and rows that are written and read back.
#include "core/model/row_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "core/base/dtype.h"
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
  std::set<RowFormat> ids;
  std::set<std::string_view> names;
  for (const RowFormat format : row_formats()) {
    ids.insert(format);
    names.insert(row_format_name(format));
    EXPECT_EQ(find_row_format(row_format_name(format)), format);
  }
  EXPECT_EQ(ids.size(), row_formats().size());
  EXPECT_EQ(names.size(), row_formats().size());
  // These ids are in messages and files: they never change.
  EXPECT_EQ(static_cast<int>(RowFormat::kF32), 1);
  EXPECT_EQ(static_cast<int>(RowFormat::kBF16), 2);
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

TEST(RowFormatTest, RowsOfScaledFp8AreTheirNumbersTimesTheirScales) {
  EXPECT_EQ(scaled_f8_row_bytes(512, 64), 656U);
  EXPECT_EQ(code_of([] { (void)scaled_f8_row_bytes(96, 0); }), ErrorCode::kInvalidArgument);
  // Two rows of 256 + 2: e4m3 codes, two scales, two bf16.
  const std::size_t bytes = scaled_f8_row_bytes(256, 2);
  ASSERT_EQ(bytes, 256U + 8 + 4);
  std::vector<std::byte> rows(2 * bytes);
  for (std::size_t row = 0; row < 2; ++row) {
    std::byte* to = rows.data() + row * bytes;
    for (std::size_t i = 0; i < 256; ++i) to[i] = static_cast<std::byte>(i + row);
    const float scales[2] = {0.25F, 8.0F};
    std::memcpy(to + 256, scales, sizeof scales);
    const bf16 rest[2] = {to_bf16(1.5F), to_bf16(-3.0F)};
    std::memcpy(to + 264, rest, sizeof rest);
  }
  std::vector<float> values(2 * 258);
  decode_scaled_f8_rows(256, 2, rows.data(), values);
  for (std::size_t row = 0; row < 2; ++row) {
    const float* got = values.data() + row * 258;
    for (std::size_t i = 0; i < 256; ++i) {
      const float code = f8_e4m3_to_float(static_cast<std::uint8_t>(i + row));
      if (std::isnan(code)) {
        EXPECT_TRUE(std::isnan(got[i])) << i;
      } else {
        EXPECT_EQ(got[i], code * (i < 128 ? 0.25F : 8.0F)) << i;
      }
    }
    EXPECT_EQ(got[256], 1.5F);
    EXPECT_EQ(got[257], -3.0F);
  }
  values.pop_back();
  EXPECT_EQ(code_of([&] { decode_scaled_f8_rows(256, 2, rows.data(), values); }),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary
