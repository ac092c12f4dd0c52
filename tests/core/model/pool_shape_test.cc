// The list of a shape's fields: it is complete, and comparisons name the fields that differ.
#include "core/model/pool_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "core/model/mla_shape.h"
#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

PoolShape some_shape() {
  return {{128, 512, 64, RowFormat::kBF16, DType::kF32, 0.25F, ProjectAt::kLeaves, 128, 128},
          7168,
          61,
          2048};
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
void change(ProjectAt& place) {
  place = ProjectAt::kHome;
}

TEST(PoolShapeTest, EveryFieldIsInTheList) {
  std::size_t bytes = 0;
  std::set<std::string_view> names;
  for_each_field(kPoolShapeFields, [&](const auto& field) {
    bytes += sizeof(some_shape().*field.member);
    names.insert(field.name);
  });
  EXPECT_EQ(names.size(), std::tuple_size_v<decltype(kPoolShapeFields)>);
  // The struct has the fields, and gaps after the two types and the mode.
  EXPECT_EQ(bytes + 2 + 3, sizeof(PoolShape));
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

TEST(PoolShapeTest, LeavesAreProjectedWithTheDimensionsOfAModelsWeights) {
  const auto found = [](const std::string& name, ProjectAt place) {
    return find_attention_shape(name, RowFormat::kBF16, DType::kBF16, place);
  };
  const AttentionShape leaves = found("deepseek-v3", ProjectAt::kLeaves);
  EXPECT_EQ(leaves.query_bytes(), 128U * 192 * 2);
  EXPECT_EQ(leaves.state_shape().record_bytes(), 128U * 129 * 4);
  EXPECT_EQ(found("deepseek-v3", ProjectAt::kHome).query_bytes(), 128U * 576 * 2);
  // One without weights has a home alone; what is lacking is named, and who has it.
  EXPECT_EQ(found("glm-5", ProjectAt::kHome).query_bytes(), 64U * 576 * 2);
  TRIBUTARY_EXPECT_ERROR(found("glm-5", ProjectAt::kLeaves), ErrorCode::kInvalidArgument,
                         "shape 'glm-5' is without weights: it has no qk_nope_head_dim and no "
                         "v_head_dim; there are deepseek-v3, deepseek-v2, deepseek-v2-lite, "
                         "kimi-k2, and the config.json of a model with weights");
  TRIBUTARY_EXPECT_ERROR(found("gpt", ProjectAt::kLeaves), ErrorCode::kNotFound, "glm-5");
  test::TemporaryFolder folder;
  const std::string file = folder.write("shape.json", R"({"heads": 9, "kv_lora_rank": 192,
      "qk_rope_head_dim": 0, "layers": 30, "softmax_scale": 0.125})");
  EXPECT_EQ(found(file, ProjectAt::kHome).heads, 9);
  TRIBUTARY_EXPECT_ERROR(found(file, ProjectAt::kLeaves), ErrorCode::kMalformedInput, file);
}

}  // namespace
}  // namespace tributary
