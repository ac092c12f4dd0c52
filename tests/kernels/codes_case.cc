#include "tests/kernels/codes_case.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace tributary::test {
namespace {

/// Rows whose tiles have one outlier, or nothing, or what rounds to every kind of code.
std::vector<float> hard_rows(Normal& normal, std::size_t rows, std::size_t width) {
  std::vector<float> values = normal.floats(rows * width);
  for (std::size_t row = 0; row < rows; ++row) {
    float* value = values.data() + row * width;
    switch (row % 5) {
      case 0:
        value[row % width] = 300.0F;
        break;
      case 1:
        for (std::size_t i = 0; i < width; ++i) value[i] = 0.0F;
        break;
      case 2:
        for (std::size_t i = 0; i < width; ++i) value[i] *= static_cast<float>(1 << i % 17) * 1e-6F;
        break;
      case 3:
        for (std::size_t i = 0; i < width; ++i) value[i] *= 1e-30F;
        break;
      default:
        break;
    }
  }
  return values;
}

}  // namespace

std::vector<RowFormat> formats_of_codes() {
  RowFormat scaled = RowFormat::kFp8;
  scaled.scale = 0.03F;
  return {RowFormat::kFp8DsMla, scaled};
}

void expect_bits_of_values(Backend& backend, const LatentShape& shape) {
  LatentShape plain = shape;
  plain.row_format = RowFormat::kBF16;
  LatentCase codes(backend, shape, 40, 5);
  LatentCase values(backend, plain, 40, 5);
  Normal normal(static_cast<std::uint32_t>(shape.heads));
  const auto width = static_cast<std::size_t>(shape.latent_dim());
  std::vector<LeafTask> tasks;
  std::int32_t records = 0;
  for (const auto& [rows, tokens] :
       std::vector<std::pair<int, int>>{{1, 1}, {63, 1}, {64, 2}, {65, 3}, {129, 1}, {600, 4}}) {
    std::vector<float> floats = hard_rows(normal, static_cast<std::size_t>(rows), width);
    const Leaf leaf = codes.add_leaf(floats);
    shape.row().round(floats);
    ASSERT_EQ(values.add_leaf(floats).first_page, leaf.first_page);
    tasks.push_back({.tokens = tokens,
                     .rows = rows,
                     .first_page = leaf.first_page,
                     .query_position = rows - tokens,
                     .query = records,
                     .state = records});
    records += tokens;
  }
  const auto queries = normal.floats(static_cast<std::size_t>(records * shape.heads) * width);
  const auto count = static_cast<std::size_t>(records);
  EXPECT_EQ(codes.attend(tasks, queries, count), values.attend(tasks, queries, count))
      << shape.text();
  // One of the leaves alone, as a single sequence is served, and some of its rows.
  LeafTask alone = tasks.back();
  alone.tokens = 1;
  alone.query = alone.state = 0;
  alone.query_position = alone.rows;
  EXPECT_EQ(codes.attend({alone}, queries, 1), values.attend({alone}, queries, 1))
      << shape.text() << ", alone";
  const std::vector<std::int32_t> positions{0, 1, 63, 64, 70, 71, 300, 598, 599};
  codes.select({positions});
  values.select({positions});
  EXPECT_EQ(codes.attend({alone}, queries, 1), values.attend({alone}, queries, 1))
      << shape.text() << ", selected";
}

}  // namespace tributary::test
