// The float64 layer against golden vectors that other code computed, and the attention alone
// against results in closed form.
#include "tests/core/reference/mla_reference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "core/reference/golden_case.h"
#include "tests/core/layer/random_layer.h"
#include "tests/core/reference/golden_files.h"
#include "tests/core/reference/reference_state.h"

namespace tributary {
namespace {

using test::expect_close;
using test::expect_lse_close;
using test::group_of;

template <typename T>
std::span<const T> block(const std::vector<T>& values, std::int64_t index, std::int64_t size) {
  return std::span(values).subspan(static_cast<std::size_t>(index * size),
                                   static_cast<std::size_t>(size));
}

/// Columns [begin, begin + width) of rows of `row_width`.
std::vector<double> columns(std::span<const double> rows, std::int64_t row_width,
                            std::int64_t begin, std::int64_t width) {
  std::vector<double> result;
  for (std::size_t at = 0; at < rows.size(); at += static_cast<std::size_t>(row_width)) {
    const auto part =
        rows.subspan(at + static_cast<std::size_t>(begin), static_cast<std::size_t>(width));
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

using Parameters = std::tuple<std::string_view, std::string_view>;  // file, group

class ReferenceAgainstGolden : public testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override {
    const auto path = test::golden_file(std::get<0>(GetParam()));
    TRIBUTARY_SKIP_WITHOUT(path);
    golden_ = load_golden_case(path);
    group_ = &group_of(golden_, std::get<1>(GetParam()));
    heads_ = golden_.shape.num_attention_heads;
    rank_ = golden_.shape.kv_lora_rank;
    rope_ = golden_.shape.qk_rope_head_dim;
    hidden_ = golden_.shape.hidden_size;
  }

  GoldenCase golden_;
  const GoldenGroup* group_ = nullptr;
  std::int64_t heads_ = 0, rank_ = 0, rope_ = 0, hidden_ = 0;
};

// decode.lse and decode.latent were evaluated in float64 from the stored queries and caches, so the
// two evaluations differ by rounding: a sum of ~600 products in double, 600 * 2^-53 = 7e-14 at
// worst, times scores of a few tens.
TEST_P(ReferenceAgainstGolden, AttentionOnStoredQueriesAndCaches) {
  for (std::int64_t b = 0; b < golden_.batch; ++b) {
    for (std::int64_t d = 0; d < golden_.decode_steps; ++d) {
      const std::int64_t step = b * golden_.decode_steps + d;
      const auto absorbed = block(group_->decode_q_absorbed, step, heads_ * rank_);
      const auto pe = block(group_->decode_q_pe, step, heads_ * rope_);
      std::vector<double> query;
      for (std::int64_t h = 0; h < heads_; ++h) {
        query.insert(query.end(), absorbed.begin() + h * rank_, absorbed.begin() + (h + 1) * rank_);
        query.insert(query.end(), pe.begin() + h * rope_, pe.begin() + (h + 1) * rope_);
      }
      std::vector<double> rows;
      for (std::int64_t t = 0; t < golden_.prefill_len + d + 1; ++t) {
        const auto kv = block(group_->cache_kv, b * golden_.tokens() + t, rank_);
        const auto key = block(group_->cache_pe, b * golden_.tokens() + t, rope_);
        rows.insert(rows.end(), kv.begin(), kv.end());
        rows.insert(rows.end(), key.begin(), key.end());
      }
      const ReferenceState state = reference_attend(
          static_cast<int>(heads_), static_cast<int>(rank_), static_cast<int>(rope_),
          golden_.shape.softmax_scale(), query, std::span<const double>(rows));
      expect_close<double>("latent", state.o, block(group_->decode_latent, step, heads_ * rank_),
                           rank_, 1e-12, 1e-12);
      expect_lse_close<double>("lse", state.lse, block(group_->decode_lse, step, heads_), 1e-11);
    }
  }
}

TEST_P(ReferenceAgainstGolden, WholeLayer) {
  const test::GoldenBounds bounds = test::golden_bounds(group_->name);
  const MlaReference layer(golden_.shape, golden_.weights);
  std::optional<RowFormat> row_format;
  if (group_->row_format == RowFormat::kBF16) row_format = RowFormat::kBF16;
  const int sequences = golden_.name == "tiny" ? 2 : 1;
  const std::int64_t tokens = golden_.tokens();
  const std::int64_t prefill = golden_.prefill_len;
  const std::int64_t steps = golden_.decode_steps;
  const std::int64_t latent_dim = rank_ + rope_;
  const std::int64_t query_width = heads_ * golden_.shape.qk_head_dim();
  const std::vector<std::int64_t> positions = test::positions_from(0, tokens);
  // More sequences of the large files would only repeat this with other random numbers, slowly.
  for (std::int64_t b = 0; b < std::min(golden_.batch, sequences); ++b) {
    const auto hidden = block(golden_.hidden_states, b, tokens * hidden_);
    const std::vector<double> rows = layer.latent_rows(hidden, positions, row_format);
    expect_close<double>("cache.kv", columns(rows, latent_dim, 0, rank_),
                         block(group_->cache_kv, b, tokens * rank_), rank_, bounds.cache_kv,
                         bounds.cache_kv_row);
    expect_close<double>("cache.pe", columns(rows, latent_dim, rank_, rope_),
                         block(group_->cache_pe, b, tokens * rope_), rope_, bounds.cache_pe,
                         bounds.cache_pe_row);

    const std::vector<double> queries = layer.queries(hidden, positions);
    const std::span<const double> all_queries(queries);
    const std::span<const double> all_rows(rows);
    const auto prefill_size = [&](std::int64_t width) {
      return static_cast<std::size_t>(prefill * width);
    };
    expect_close<double>("prefill.output",
                         layer.prefill(all_queries.first(prefill_size(query_width)),
                                       all_rows.first(prefill_size(latent_dim))),
                         block(group_->prefill_output, b, prefill * hidden_), hidden_,
                         bounds.relative, bounds.row);

    const std::vector<double> absorbed =
        layer.absorb(all_queries.subspan(prefill_size(query_width)));
    expect_close<double>("q_nope_absorbed", columns(absorbed, latent_dim, 0, rank_),
                         block(group_->decode_q_absorbed, b, steps * heads_ * rank_), rank_,
                         bounds.relative, bounds.row);
    expect_close<double>("q_pe", columns(absorbed, latent_dim, rank_, rope_),
                         block(group_->decode_q_pe, b, steps * heads_ * rope_), rope_,
                         bounds.relative, bounds.row);
    std::vector<double> latents;
    std::vector<double> lse;
    for (std::int64_t d = 0; d < steps; ++d) {
      const ReferenceState state = reference_attend(
          static_cast<int>(heads_), static_cast<int>(rank_), static_cast<int>(rope_),
          golden_.shape.softmax_scale(), block(absorbed, d, heads_ * latent_dim),
          all_rows.first(static_cast<std::size_t>((prefill + d + 1) * latent_dim)));
      latents.insert(latents.end(), state.o.begin(), state.o.end());
      lse.insert(lse.end(), state.lse.begin(), state.lse.end());
    }
    expect_close<double>("decode.latent", latents,
                         block(group_->decode_latent, b, steps * heads_ * rank_), rank_,
                         bounds.relative, bounds.row);
    expect_lse_close<double>("decode.lse", lse, block(group_->decode_lse, b, steps * heads_),
                             bounds.lse);
    expect_close<double>("decode.output", layer.output(latents),
                         block(group_->decode_output, b, steps * hidden_), hidden_, bounds.relative,
                         bounds.row);
  }
}

INSTANTIATE_TEST_SUITE_P(Files, ReferenceAgainstGolden,
                         testing::Combine(testing::ValuesIn(test::kGoldenNames),
                                          testing::Values("f32", "bf16cache")),
                         [](const auto& info) {
                           std::string name(std::get<0>(info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_" + std::string(std::get<1>(info.param));
                         });

// The two forms are the same function, computed in different orders of double sums.
TEST(MlaReference, AbsorbedDecodeEqualsDecompressedPrefill) {
  for (const int q_lora_rank : {0, 31}) {
    const ModelShape shape = test::odd_shape(q_lora_rank);
    const LayerWeights weights = test::random_weights(shape, 5);
    const MlaReference layer(shape, weights);
    constexpr std::int64_t kTokens = 9;
    const auto hidden = test::random_floats(kTokens * shape.hidden_size, 1, 6);
    const auto positions = test::positions_from(0, kTokens);
    const auto rows = layer.latent_rows(hidden, positions);
    const auto queries = layer.queries(hidden, positions);
    const auto absorbed = layer.absorb(queries);
    std::vector<double> latents;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const ReferenceState state = reference_attend(
          shape.num_attention_heads, shape.kv_lora_rank, shape.qk_rope_head_dim,
          shape.softmax_scale(),
          block(absorbed, t, std::int64_t{shape.num_attention_heads} * shape.latent_dim()),
          std::span<const double>(rows).first(
              static_cast<std::size_t>((t + 1) * shape.latent_dim())));
      latents.insert(latents.end(), state.o.begin(), state.o.end());
    }
    expect_close<double>("output", layer.output(latents), layer.prefill(queries, rows),
                         shape.hidden_size, 1e-13, 1e-13);
  }
}

TEST(MlaReference, RowsAreRoundedAsACacheStoresThem) {
  const ModelShape shape = test::odd_shape(0);
  const LayerWeights weights = test::random_weights(shape, 7);
  const MlaReference layer(shape, weights);
  const auto hidden = test::random_floats(shape.hidden_size, 1, 8);
  const auto positions = test::positions_from(3, 1);
  const auto exact = layer.latent_rows(hidden, positions);
  const auto f32 = layer.latent_rows(hidden, positions, RowFormat::kF32);
  const auto rounded = layer.latent_rows(hidden, positions, RowFormat::kBF16);
  EXPECT_NE(exact, f32);
  for (std::size_t i = 0; i < exact.size(); ++i) {
    EXPECT_EQ(f32[i], static_cast<float>(exact[i]));
    EXPECT_EQ(rounded[i], to_float(to_bf16(static_cast<float>(exact[i]))));
  }
}

TEST(MlaReference, RefusesSizesThatDoNotMatch) {
  const ModelShape shape = test::odd_shape(0);
  LayerWeights weights = test::random_weights(shape, 9);
  const MlaReference layer(shape, weights);
  constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
  const std::vector<float> hidden(static_cast<std::size_t>(2 * shape.hidden_size));
  const auto one = test::positions_from(0, 1);
  TRIBUTARY_EXPECT_ERROR(layer.queries(hidden, one), kBad, "1 positions for 2 tokens");
  TRIBUTARY_EXPECT_ERROR(layer.latent_rows(std::span(hidden).first(5), one), kBad,
                         "5 elements of hidden are no multiple of 77");
  weights.o_proj.pop_back();
  TRIBUTARY_EXPECT_ERROR(MlaReference(shape, weights), kBad, "o_proj");
}

TEST(ReferenceAttend, NoRowIsTheEmptyState) {
  const std::vector<double> query(10, 1.0);
  const ReferenceState state = reference_attend(2, 3, 2, 1, query, std::span<const float>());
  EXPECT_EQ(state.o, std::vector<double>(6, 0.0));
  EXPECT_EQ(state.lse, std::vector<double>(2, -std::numeric_limits<double>::infinity()));
}

TEST(ReferenceAttend, OneRowIsItself) {
  const std::vector<double> query = {1, 0, 2, 0.5};
  const std::vector<float> row = {3, 5, 7, -8};
  const ReferenceState state = reference_attend(1, 3, 1, 0.25, query, std::span<const float>(row));
  EXPECT_EQ(state.o, (std::vector<double>{3, 5, 7}));
  EXPECT_EQ(state.lse, std::vector<double>{0.25 * (3 + 14 - 4)});
}

TEST(ReferenceAttend, EqualScoresGiveTheMean) {
  constexpr std::size_t kRows = 130;  // two full blocks and a part
  const std::vector<double> query = {0, 1};
  std::vector<double> rows;
  for (std::size_t j = 0; j < kRows; ++j) {
    rows.push_back(static_cast<double>(j));
    rows.push_back(2);
  }
  const ReferenceState state = reference_attend(1, 1, 1, 1, query, std::span<const double>(rows));
  EXPECT_DOUBLE_EQ(state.o[0], (kRows - 1) / 2.0);
  EXPECT_DOUBLE_EQ(state.lse[0], 2 + std::log(kRows));
}

// exp(800) overflows a double: only a running maximum survives this, rising and falling.
TEST(ReferenceAttend, ScoresFarBeyondTheRangeOfExp) {
  constexpr int kRows = 200;
  for (const double slope : {10.0, -10.0}) {
    std::vector<double> rows;
    for (int j = 0; j < kRows; ++j) {
      rows.push_back(j);
      rows.push_back(slope * j);
    }
    const std::vector<double> query = {0, 1};
    const ReferenceState state = reference_attend(1, 1, 1, 1, query, std::span<const double>(rows));
    // A geometric series with ratio e^-10 away from the largest score.
    const double ratio = std::exp(-10.0);
    const double largest = slope > 0 ? kRows - 1 : 0;
    // Scores up to 2000, of 2^-53 relative precision.
    EXPECT_NEAR(state.lse[0], slope * largest - std::log1p(-ratio), 2000 * 0x1p-52);
    const double distance = ratio / (1 - ratio);
    EXPECT_NEAR(state.o[0], slope > 0 ? largest - distance : distance, 1e-12);
  }
}

TEST(ReferenceAttend, PiecesGiveTheWhole) {
  constexpr int kHeads = 3;
  constexpr int kRank = 19;
  constexpr int kRope = 6;
  constexpr std::int64_t kWidth = kRank + kRope;
  constexpr std::int64_t kRows = 301;
  const auto query_floats = test::random_floats(kHeads * kWidth, 1, 1);
  const std::vector<double> query(query_floats.begin(), query_floats.end());
  const std::vector<float> rows = test::random_floats(kRows * kWidth, 1, 2);
  const ReferenceState whole =
      reference_attend(kHeads, kRank, kRope, 0.5, query, std::span<const float>(rows));
  ReferenceAttention attention(kHeads, kRank, kRope, 0.5, query);
  std::int64_t begin = 0;
  for (const std::int64_t count : {0, 1, 63, 64, 65, 108}) {
    attention.add(std::span(rows).subspan(static_cast<std::size_t>(begin * kWidth),
                                          static_cast<std::size_t>(count * kWidth)));
    begin += count;
  }
  ASSERT_EQ(begin, kRows);
  const ReferenceState pieces = attention.state();
  // Sums of 301 positive weights in another order of blocks: 301 * 2^-53.
  expect_close<double>("o", pieces.o, whole.o, kRank, 1e-13, 1e-13);
  expect_lse_close<double>("lse", pieces.lse, whole.lse, 1e-13);
}

TEST(ReferenceAttend, RefusesSizesThatDoNotMatch) {
  const std::vector<double> query(10);
  constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;
  TRIBUTARY_EXPECT_ERROR(ReferenceAttention(2, 3, 1, 1, query), kBad, "2 heads of 4");
  ReferenceAttention attention(2, 3, 2, 1, query);
  const std::vector<float> rows(7);
  TRIBUTARY_EXPECT_ERROR(attention.add(std::span<const float>(rows)), kBad, "whole rows of 5");
}

}  // namespace
}  // namespace tributary
