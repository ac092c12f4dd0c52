// The data of a replay's clients: rows and queries are the generator's, outputs reach the digest,
// and the canaries tell right outputs from wrong ones.
#include "deploy/app/replay/synthetic_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "tests/core/reference/reference_state.h"

namespace tributary {
namespace {

constexpr std::uint64_t kSeed = 5;

constexpr AttentionShape kShape{.heads = 3,
                                .kv_lora_rank = 8,
                                .qk_rope_head_dim = 4,
                                .row_format = RowFormat::kBF16,
                                .query_dtype = DType::kF32,
                                .softmax_scale = 0.25F};
constexpr std::size_t kWidth = 12;
constexpr std::size_t kOutput = 3 * 8;

std::vector<float> generated_row(std::int64_t tag, int layer, std::int64_t position) {
  std::vector<float> row(kWidth);
  TokenGenerator(kSeed).row(tag, layer, position, row);
  for (float& value : row) value = to_float(to_bf16(value));
  return row;
}

std::vector<float> generated_query(std::int64_t tag, int layer, std::int64_t position) {
  std::vector<float> query(3 * kWidth);
  TokenGenerator(kSeed).query(tag, layer, position, query);
  return query;
}

std::vector<float> widened(const std::byte* bf16_values, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    bf16 value;
    std::memcpy(&value, bf16_values + i * sizeof value, sizeof value);
    values[i] = to_float(value);
  }
  return values;
}

/// The right output of a token, by the float64 reference.
std::vector<float> right_output(std::int64_t tag, int layer, std::int64_t position) {
  const auto query = generated_query(tag, layer, position);
  std::vector<double> rows;
  for (std::int64_t p = 0; p <= position; ++p) {
    const auto row = generated_row(tag, layer, p);
    rows.insert(rows.end(), row.begin(), row.end());
  }
  const auto state =
      reference_attend(3, 8, 4, 0.25, std::vector<double>(query.begin(), query.end()),
                       std::span<const double>(rows));
  return {state.o.begin(), state.o.end()};
}

TEST(SyntheticTokens, PromptRowsAreTheGenerators) {
  std::vector<std::byte> rows(5 * kWidth * 2);
  SyntheticTokens(kShape, kSeed, 0).write_rows(9, 2, 100, 5, rows.data());
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(widened(rows.data() + i * kWidth * 2, kWidth),
              generated_row(9, 2, 100 + static_cast<std::int64_t>(i)))
        << "row " << i;
  }
}

TEST(SyntheticTokens, RecordsHoldTheQueryAndThenTheNewRow) {
  ASSERT_EQ(kShape.token_record_bytes(), 3 * kWidth * 4 + kWidth * 2);
  std::vector<std::byte> record(kShape.token_record_bytes());
  SyntheticTokens(kShape, kSeed, 0).write_record(4, 3, 31, record.data());
  std::vector<float> query(3 * kWidth);
  std::memcpy(query.data(), record.data(), query.size() * sizeof(float));
  EXPECT_EQ(query, generated_query(4, 3, 31));
  EXPECT_EQ(widened(record.data() + kShape.query_bytes(), kWidth), generated_row(4, 3, 31));
}

TEST(SyntheticTokens, DigestIsThatOfTheOutputsInAnyOrder) {
  const std::vector<float> a(kOutput, 0.5F);
  std::vector<float> b(kOutput, 0.5F);
  b.back() = std::nextafter(0.5F, 1.0F);  // the last bit counts
  Digest expected;
  expected.add(1, 10, 0, a);
  expected.add(2, 20, 1, b);

  SyntheticTokens in_order(kShape, kSeed, 0);
  in_order.take_output(1, 0, 10, a);
  in_order.take_output(2, 1, 20, b);
  EXPECT_EQ(in_order.digest().value(), expected.value());
  SyntheticTokens backwards(kShape, kSeed, 0);
  backwards.take_output(2, 1, 20, b);
  backwards.take_output(1, 0, 10, a);
  EXPECT_EQ(backwards.digest().value(), expected.value());
  SyntheticTokens exchanged(kShape, kSeed, 0);
  exchanged.take_output(1, 0, 10, b);
  exchanged.take_output(2, 1, 20, a);
  EXPECT_NE(exchanged.digest().value(), expected.value());
}

TEST(SyntheticTokens, CanariesPassTheRightOutput) {
  SyntheticTokens tokens(kShape, kSeed, 1);
  for (const std::int64_t position : {0, 1, 300}) {
    tokens.take_output(6, 1, position, right_output(6, 1, position));
  }
  const auto result = tokens.check_canaries();
  EXPECT_EQ(result.checked, 3);
  // What rounding the reference to fp32 costs.
  EXPECT_LE(result.max_relative_error, 0x1p-24);
}

TEST(SyntheticTokens, CanariesSeeAWrongOutput) {
  const auto right = right_output(6, 1, 50);
  SyntheticTokens tokens(kShape, kSeed, 1);
  tokens.take_output(6, 1, 50, right);
  auto wrong = right;
  wrong[5] += 1;
  tokens.take_output(6, 1, 50, wrong);
  EXPECT_GT(tokens.check_canaries().max_relative_error, 0.01);

  SyntheticTokens elsewhere(kShape, kSeed, 1);  // the output of another position
  elsewhere.take_output(6, 1, 49, right);
  EXPECT_GT(elsewhere.check_canaries().max_relative_error, 0.01);
}

TEST(SyntheticTokens, CanariesSeeNaN) {
  auto output = right_output(6, 1, 50);
  SyntheticTokens tokens(kShape, kSeed, 1);
  tokens.take_output(6, 1, 50, output);
  output[0] = std::numeric_limits<float>::quiet_NaN();
  tokens.take_output(6, 1, 50, output);
  tokens.take_output(6, 1, 50, right_output(6, 1, 50));
  EXPECT_EQ(tokens.check_canaries().max_relative_error, std::numeric_limits<double>::infinity());
}

TEST(SyntheticTokens, CanaryRateIsTheShareThatIsChecked) {
  const std::vector<float> output(kOutput, 0.0F);
  const auto checked = [&](double rate, int outputs) {
    SyntheticTokens tokens(kShape, kSeed, rate);
    for (int i = 0; i < outputs; ++i) tokens.take_output(i % 7, i % 2, i / 14, output);
    return tokens.check_canaries().checked;
  };
  EXPECT_EQ(checked(0, 500), 0);
  EXPECT_EQ(checked(1, 20), 20);
  // Binomial(400, 0.1): 40 +- 6; 5 deviations either way.
  EXPECT_NEAR(static_cast<double>(checked(0.1, 400)), 40, 30);
  EXPECT_EQ(checked(1, 500), static_cast<std::int64_t>(SyntheticTokens::kMaxCanaries));
}

}  // namespace
}  // namespace tributary
