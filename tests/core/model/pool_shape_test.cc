// The list of a shape's fields: it is complete, and comparisons name the fields that differ.
#include "core/model/pool_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string_view>

#include "core/model/mla_shape.h"

namespace tributary {
namespace {

PoolShape some_shape() {
  return {{128, 512, 64, RowFormat::kBF16, DType::kF32, 0.25F}, 128, 128, 7168, 61, 2048, 1e-6F};
}

void change(int& dimension) {
  ++dimension;
}
void change(float& number) {
  number *= 2;
}
void change(RowFormat& format) {
  format = RowFormat::kF32;
}
void change(DType& type) {
  type = DType::kF64;
}

TEST(PoolShapeTest, EveryFieldIsInTheList) {
  std::size_t bytes = 0;
  std::set<std::string_view> names;
  for_each_field(kPoolShapeFields, [&](const auto& field) {
    bytes += sizeof(some_shape().*field.member);
    names.insert(field.name);
  });
  EXPECT_EQ(names.size(), std::tuple_size_v<decltype(kPoolShapeFields)>);
  // The struct has the fields, and a gap after the queries' type.
  EXPECT_EQ(bytes + 3, sizeof(PoolShape));
}

TEST(PoolShapeTest, TheFirstDifferenceIsNamed) {
  EXPECT_FALSE(find_difference(some_shape(), some_shape()));
  for_each_field(kPoolShapeFields, [&](const auto& field) {
    PoolShape other = some_shape();
    change(other.*field.member);
    EXPECT_NE(other, some_shape());
    const auto difference = find_difference(some_shape(), other);
    ASSERT_TRUE(difference) << field.name;
    EXPECT_EQ(difference->field, field.name);
    EXPECT_NE(difference->first, difference->second);
  });
  PoolShape other = some_shape();
  other.softmax_scale = 0.5F;
  other.query_dtype = DType::kBF16;
  const auto difference = find_difference(some_shape(), other);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->field, "query_dtype");
  EXPECT_EQ(difference->first, "f32");
  EXPECT_EQ(difference->second, "bf16");
}

TEST(PoolShapeTest, APoolOfAnotherModelIsNamedByWhatDiffers) {
  const MlaShape model = find_mla_shape("kimi-k2.5");
  const auto pool_of = [](const MlaShape& shape) {
    PoolShape pool{attention_shape(shape, RowFormat::kBF16, DType::kBF16)};
    pool.layers = shape.layers;
    return pool;
  };
  EXPECT_FALSE(find_difference(model, pool_of(model)));
  MlaShape rounded = model;
  rounded.softmax_scale = 0.14468;  // as people write it
  EXPECT_FALSE(find_difference(model, pool_of(rounded)));
  // Kimi K2 has the same dimensions: attention would be wrong without a word.
  const auto scale = find_difference(model, pool_of(find_mla_shape("kimi-k2")));
  ASSERT_TRUE(scale);
  EXPECT_EQ(scale->field, "softmax_scale");
  EXPECT_THAT(scale->first, testing::StartsWith("0.14467"));
  EXPECT_THAT(scale->second, testing::StartsWith("0.13086"));
  for (const auto& [field, member] :
       {std::pair{"heads", &MlaShape::heads}, std::pair{"kv_lora_rank", &MlaShape::kv_lora_rank},
        std::pair{"qk_rope_head_dim", &MlaShape::qk_rope_head_dim},
        std::pair{"layers", &MlaShape::layers}, std::pair{"topk", &MlaShape::topk}}) {
    MlaShape other = model;
    ++(other.*member);
    const auto difference = find_difference(model, pool_of(other));
    ASSERT_TRUE(difference) << field;
    EXPECT_EQ(difference->field, field);
  }
}

TEST(PoolShapeTest, AModelGivesTheAttentionOfItsLayers) {
  const MlaShape model = find_mla_shape("deepseek-v2-lite");
  EXPECT_EQ(attention_shape(model, RowFormat::kF32, DType::kBF16),
            (AttentionShape{.heads = 16,
                            .kv_lora_rank = 512,
                            .qk_rope_head_dim = 64,
                            .row_format = RowFormat::kF32,
                            .query_dtype = DType::kBF16,
                            .softmax_scale = static_cast<float>(model.softmax_scale)}));
}

}  // namespace
}  // namespace tributary
