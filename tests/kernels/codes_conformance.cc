// Rows of FP8 codes: a cache of them gives the bits of a bf16 cache that holds their values.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "tests/core/base/expect_error.h"
#include "tests/kernels/backend_conformance.h"
#include "tests/kernels/latent_case.h"

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

/// Of a format of codes: each width, number of heads and type of queries.
void expect_bits_of_values(Backend& backend, RowFormat format) {
  if (backend.name().starts_with("cuda")) {  // it has no kernels for them
    EXPECT_EQ(code_of([&] {
                (void)backend.make_cache({.layers = 1,
                                          .pages = 1,
                                          .kv_lora_rank = 512,
                                          .qk_rope_head_dim = 64,
                                          .row_format = format});
              }),
              ErrorCode::kUnsupported);
    return;
  }
  const std::vector<std::pair<int, int>> widths{{512, 64}, {128, 2}, {256, 0}};
  for (const auto& [rank, rope] : widths) {
    for (const int heads : {1, 4, 16, 17, 64, 128}) {
      if (rank != 512 && heads > 17) continue;
      for (const DType query : {DType::kBF16, DType::kF32}) {
        LatentShape shape{rank, rope, heads, format, query};
        LatentShape plain = shape;
        plain.row_format = RowFormat::kBF16;
        LatentCase codes(backend, shape, 40, 5);
        LatentCase values(backend, plain, 40, 5);
        Normal normal(static_cast<std::uint32_t>(heads));
        const auto width = static_cast<std::size_t>(shape.latent_dim());
        std::vector<LeafTask> tasks;
        std::int32_t records = 0;
        for (const auto& [rows, tokens] : std::vector<std::pair<int, int>>{
                 {1, 1}, {63, 1}, {64, 2}, {65, 3}, {129, 1}, {600, 4}}) {
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
        const auto queries = normal.floats(static_cast<std::size_t>(records * heads) * width);
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
    }
  }
}

TEST_P(BackendConformance, RowsOfCodesGiveTheBitsOfTheirValues) {
  expect_bits_of_values(backend(), RowFormat::kFp8DsMla);
}

TEST_P(BackendConformance, RowsOfCodesWithOneScaleGiveTheBitsOfTheirValues) {
  RowFormat format = RowFormat::kFp8;
  format.scale = 0.03F;
  expect_bits_of_values(backend(), format);
}

}  // namespace
}  // namespace tributary::test
