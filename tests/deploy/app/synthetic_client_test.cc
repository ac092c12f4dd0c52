// The replay's client: rows and queries are the generator's, outputs reach the digest, and the
// canaries tell right outputs from wrong ones.
#include "deploy/app/replay/synthetic_client.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "kernels/reference/reference_backend.h"
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

/// One client, and a state record to read outputs from.
class SyntheticClientTest : public testing::Test {
 protected:
  SyntheticClient& client(double canary_rate) {
    client_ = std::make_unique<SyntheticClient>(kShape, *backend_, kSeed, canary_rate);
    return *client_;
  }

  /// As after a round in which `output` was the state of (tag, position) at `layer`.
  void deliver(std::int64_t tag, int layer, std::int64_t position,
               const std::vector<float>& output) {
    std::vector<float> record(kShape.state_shape().record_floats(), 0.0F);
    std::copy(output.begin(), output.end(), record.begin());
    const auto states = backend_->allocate(record.size() * sizeof(float));
    backend_->upload(states->data(), std::as_bytes(std::span(record)));
    const HomedItem item{.item = 0,
                         .id = 1,
                         .tag = tag,
                         .position = position,
                         .tokens = 1,
                         .token_record = 0,
                         .state = 0};
    const std::int32_t item_layer = layer;
    client_->read_states({&item, 1}, {&item_layer, 1}, states->as<float>());
  }

  std::unique_ptr<Backend> backend_ = make_reference_backend();
  std::unique_ptr<SyntheticClient> client_;
};

TEST_F(SyntheticClientTest, PromptRowsAreTheGenerators) {
  Sequence sequence;
  sequence.tag = 9;
  std::vector<std::byte> rows(5 * kWidth * 2);
  client(0).fill_rows(sequence, 2, 100, 5, rows.data());
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(widened(rows.data() + i * kWidth * 2, kWidth),
              generated_row(9, 2, 100 + static_cast<std::int64_t>(i)))
        << "row " << i;
  }
}

TEST_F(SyntheticClientTest, TokenRecordsHoldTheQueryAndThenTheNewRow) {
  const std::size_t record = kShape.token_record_bytes();
  ASSERT_EQ(record, 3 * kWidth * 4 + kWidth * 2);
  const auto records = backend_->allocate(3 * record);
  const std::vector<HomedItem> items = {
      {.item = 1, .id = 7, .tag = 4, .position = 30, .tokens = 2, .token_record = 1, .state = 0}};
  const std::vector<std::int32_t> item_layer = {0, 3};  // item 1 is at layer 3
  client(0).write_tokens(items, item_layer, records->data(), record);
  for (std::int64_t t = 0; t < 2; ++t) {
    const std::byte* at = records->data() + static_cast<std::size_t>(1 + t) * record;
    std::vector<float> query(3 * kWidth);
    std::memcpy(query.data(), at, query.size() * sizeof(float));
    EXPECT_EQ(query, generated_query(4, 3, 30 + t));
    EXPECT_EQ(widened(at + kShape.query_bytes(), kWidth), generated_row(4, 3, 30 + t));
  }
}

TEST_F(SyntheticClientTest, DigestIsThatOfTheOutputsInAnyOrder) {
  const std::vector<float> a(kOutput, 0.5F);
  std::vector<float> b(kOutput, 0.5F);
  b.back() = std::nextafter(0.5F, 1.0F);  // the last bit counts
  Digest expected;
  expected.add(1, 10, 0, a);
  expected.add(2, 20, 1, b);

  client(0);
  deliver(1, 0, 10, a);
  deliver(2, 1, 20, b);
  EXPECT_EQ(client_->digest().value(), expected.value());
  client(0);
  deliver(2, 1, 20, b);
  deliver(1, 0, 10, a);
  EXPECT_EQ(client_->digest().value(), expected.value());
  client(0);
  deliver(1, 0, 10, b);
  deliver(2, 1, 20, a);
  EXPECT_NE(client_->digest().value(), expected.value());
}

TEST_F(SyntheticClientTest, CanariesPassTheRightOutput) {
  client(1);
  for (const std::int64_t position : {0, 1, 300}) {
    deliver(6, 1, position, right_output(6, 1, position));
  }
  const auto result = client_->check_canaries();
  EXPECT_EQ(result.checked, 3);
  // The error of rounding the reference to fp32.
  EXPECT_LE(result.max_relative_error, 0x1p-24);
}

TEST_F(SyntheticClientTest, CanariesSeeAWrongOutput) {
  const auto right = right_output(6, 1, 50);
  client(1);
  deliver(6, 1, 50, right);
  auto wrong = right;
  wrong[5] += 1;
  deliver(6, 1, 50, wrong);
  EXPECT_GT(client_->check_canaries().max_relative_error, 0.01);

  client(1);  // the output of another position
  deliver(6, 1, 49, right);
  EXPECT_GT(client_->check_canaries().max_relative_error, 0.01);
}

TEST_F(SyntheticClientTest, CanariesSeeNaN) {
  auto output = right_output(6, 1, 50);
  client(1);
  deliver(6, 1, 50, output);
  output[0] = std::numeric_limits<float>::quiet_NaN();
  deliver(6, 1, 50, output);
  deliver(6, 1, 50, right_output(6, 1, 50));
  EXPECT_EQ(client_->check_canaries().max_relative_error, std::numeric_limits<double>::infinity());
}

TEST_F(SyntheticClientTest, CanaryRateIsTheShareThatIsChecked) {
  const std::vector<float> output(kOutput, 0.0F);
  const auto checked = [&](double rate, int outputs) {
    client(rate);
    for (int i = 0; i < outputs; ++i) deliver(i % 7, i % 2, i / 14, output);
    return client_->check_canaries().checked;
  };
  EXPECT_EQ(checked(0, 500), 0);
  EXPECT_EQ(checked(1, 20), 20);
  // Binomial(400, 0.1): 40 +- 6; 5 deviations either way.
  EXPECT_NEAR(static_cast<double>(checked(0.1, 400)), 40, 30);
  EXPECT_EQ(checked(1, 500), static_cast<std::int64_t>(SyntheticClient::kMaxCanaries));
}

}  // namespace
}  // namespace tributary
