// Loading of attention weights: names, shapes, dtypes, FP8 blocks, several files.
#include "core/model/layer_weights.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

constexpr ErrorCode kBad = ErrorCode::kMalformedInput;

/// Collects tensors and writes them as one safetensors file.
class FileBuilder {
 public:
  template <typename T>
  FileBuilder& add(std::string_view name, std::string_view dtype,
                   const std::vector<std::int64_t>& shape, const std::vector<T>& values) {
    const std::string bytes = test::bytes_of(values);
    header_ += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                           header_.empty() ? "" : ",", name, dtype, fmt::join(shape, ","),
                           data_.size(), data_.size() + bytes.size());
    data_ += bytes;
    return *this;
  }
  [[nodiscard]] std::string blob() const {
    return test::safetensors_blob("{" + header_ + "}", data_);
  }

 private:
  std::string header_;
  std::string data_;
};

WeightFiles one_file(test::TemporaryFolder& folder, const FileBuilder& builder) {
  return WeightFiles(folder.write("weights.safetensors", builder.blob()));
}

/// 0, 1, 2, ... from `first`: every value exact in fp32.
std::vector<float> counting(std::size_t count, float first = 0) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

TEST(LayerWeights, LoadsTheTinyGoldenFile) {
  const SafetensorsFile file(test::tiny_safetensors());
  const ModelShape shape = parse_model_config(file.header().metadata.at("config"), "tiny");
  const LayerWeights weights = load_layer_weights(WeightFiles(test::tiny_safetensors()), shape, "");
  const auto stored = [&](std::string_view name) {
    return to_floats(file.tensor(fmt::format("self_attn.{}.weight", name)));
  };
  EXPECT_TRUE(weights.q_proj.empty());
  EXPECT_EQ(weights.q_a_proj, stored("q_a_proj"));
  EXPECT_EQ(weights.q_a_layernorm, stored("q_a_layernorm"));
  EXPECT_EQ(weights.q_b_proj, stored("q_b_proj"));
  EXPECT_EQ(weights.kv_a_proj, stored("kv_a_proj_with_mqa"));
  EXPECT_EQ(weights.kv_a_layernorm, stored("kv_a_layernorm"));
  EXPECT_EQ(weights.kv_b_proj, stored("kv_b_proj"));
  EXPECT_EQ(weights.o_proj, stored("o_proj"));
}

/// Four layers with a plain query projection.
ModelShape small_shape() {
  ModelShape shape;
  shape.hidden_size = 8;
  shape.num_hidden_layers = 4;
  shape.num_attention_heads = 2;
  shape.q_lora_rank = 0;
  shape.kv_lora_rank = 4;
  shape.qk_nope_head_dim = 3;
  shape.qk_rope_head_dim = 2;
  shape.v_head_dim = 5;
  shape.max_position_embeddings = 64;
  return shape;
}

/// The attention of a layer of small_shape().
FileBuilder small_layer(const std::string& prefix) {
  FileBuilder builder;
  builder.add(prefix + "q_proj.weight", "F32", {10, 8}, counting(80, 1))
      .add(prefix + "kv_a_proj_with_mqa.weight", "F32", {6, 8}, counting(48, 2))
      .add(prefix + "kv_a_layernorm.weight", "F32", {4}, counting(4, 3))
      .add(prefix + "kv_b_proj.weight", "F32", {16, 4}, counting(64, 4))
      .add(prefix + "o_proj.weight", "F32", {8, 10}, counting(80, 5));
  return builder;
}

TEST(LayerWeights, LoadsAPlainQueryProjectionUnderAPrefix) {
  ModelShape shape = small_shape();
  test::TemporaryFolder folder;
  const WeightFiles files = one_file(folder, small_layer("model.layers.3.self_attn."));
  const LayerWeights weights = load_layer_weights(files, shape, "model.layers.3.");
  EXPECT_EQ(weights.q_proj, counting(80, 1));
  EXPECT_TRUE(weights.q_a_proj.empty());
  EXPECT_EQ(weights.kv_a_proj, counting(48, 2));
  EXPECT_EQ(weights.kv_a_layernorm, counting(4, 3));
  EXPECT_EQ(weights.kv_b_proj, counting(64, 4));
  EXPECT_EQ(weights.o_proj, counting(80, 5));
  EXPECT_TRUE(weights.scales.o_proj.empty());

  TRIBUTARY_EXPECT_ERROR(load_layer_weights(files, shape, "model.layers.2."), ErrorCode::kNotFound,
                         "no tensor 'model.layers.2.self_attn.q_proj.weight'");
  shape.v_head_dim = 4;
  TRIBUTARY_EXPECT_ERROR(load_layer_weights(files, shape, "model.layers.3."), kBad,
                         "kv_b_proj.weight' has shape [16, 4], must have [14, 4]");
  shape.v_head_dim = 0;
  TRIBUTARY_EXPECT_ERROR(load_layer_weights(files, shape, "model.layers.3."),
                         ErrorCode::kInvalidArgument, "v_head_dim is 0");
}

TEST(LayerWeights, FindsTheLayersOfAModelThatSees) {
  for (const char* prefix :
       {"model.layers.", "language_model.model.layers.", "model.language_model.layers."}) {
    test::TemporaryFolder folder;
    FileBuilder builder = small_layer(std::string(prefix) + "0.self_attn.");
    builder.add("vision_tower.encoder.layers.0.self_attn.q_proj.weight", "F32", {1}, counting(1));
    const WeightFiles files = one_file(folder, builder);
    EXPECT_EQ(layer_prefix(files), prefix);
    EXPECT_EQ(load_layer_weights(files, small_shape(), std::string(prefix) + "0.").q_proj,
              counting(80, 1));
  }
}

TEST(LayerWeights, RefusesTensorsOfAnotherAttentionByName) {
  const std::string prefix = "model.layers.3.self_attn.";
  const auto load = [&](const std::string& name, std::string_view dtype = "F32") {
    test::TemporaryFolder folder;
    FileBuilder builder = small_layer(prefix);
    // Of another layer, which is not served: no matter.
    builder.add("model.layers.30.self_attn.g_proj.weight", "F32", {1}, counting(1));
    if (dtype == "F32") builder.add(name, dtype, {1}, counting(1));
    if (dtype == "F16") builder.add(name, dtype, {1}, std::vector<std::uint16_t>{0});
    return load_layer_weights(one_file(folder, builder), small_shape(), "model.layers.3.");
  };
  for (const char* name :
       {"g_proj.weight", "q_norm.weight", "k_norm.weight", "q_proj.bias", "o_proj.bias",
        "kv_a_proj_with_mqa.bias", "kv_a_layernorm.bias", "q_a_proj.weight", "sinks",
        "o_proj.qweight", "o_proj.weight_packed", "kv_b_proj.weight_shape", "A_log"}) {
    SCOPED_TRACE(name);
    const std::string message = "tensor '" + prefix + name + "'";
    TRIBUTARY_EXPECT_ERROR(load(prefix + name), ErrorCode::kUnsupported, message);
    TRIBUTARY_EXPECT_ERROR(load(prefix + name, "F16"), ErrorCode::kUnsupported, message);
  }
  for (const char* name :
       {"rotary_emb.inv_freq", "indexer.wq_b.weight", "indexer.k_norm.bias", "k_scale", "v_scale",
        "q_proj.input_scale", "q_proj.weight_scale", "q_proj.weight_scale_2", "input_scale"}) {
    EXPECT_EQ(load(prefix + name).q_proj, counting(80, 1)) << name;
  }
}

TEST(LayerWeights, KeepsTheScalesOfWhatWasPublishedInFp8) {
  ModelShape shape;
  shape.hidden_size = 130;
  shape.num_hidden_layers = 1;
  shape.num_attention_heads = 1;
  shape.q_lora_rank = 3;
  shape.kv_lora_rank = 4;
  shape.qk_nope_head_dim = 3;
  shape.qk_rope_head_dim = 2;
  shape.v_head_dim = 5;
  shape.max_position_embeddings = 64;
  FileBuilder builder;
  const auto add = [&](std::string_view name, std::int64_t rows, std::int64_t cols, float scale) {
    const std::string full = fmt::format("self_attn.{}.weight", name);
    const std::int64_t blocks = (rows + 127) / 128 * ((cols + 127) / 128);
    builder
        .add(full, "F8_E4M3", {rows, cols},
             std::vector<std::uint8_t>(static_cast<std::size_t>(rows * cols), 0x38))
        .add(full + "_scale_inv", "F32", {(rows + 127) / 128, (cols + 127) / 128},
             counting(static_cast<std::size_t>(blocks), scale));
  };
  add("q_a_proj", 3, 130, 1);
  add("q_b_proj", 5, 3, 3);
  add("kv_a_proj_with_mqa", 6, 130, 4);
  add("o_proj", 130, 5, 6);
  builder.add("self_attn.q_a_layernorm.weight", "F32", {3}, counting(3))
      .add("self_attn.kv_a_layernorm.weight", "F32", {4}, counting(4))
      .add("self_attn.kv_b_proj.weight", "F32", {8, 4}, counting(32));
  test::TemporaryFolder folder;
  const LayerWeights weights = load_layer_weights(one_file(folder, builder), shape, "");
  EXPECT_TRUE(weights.scales.q_proj.empty());
  EXPECT_EQ(weights.scales.q_a_proj, counting(2, 1));
  EXPECT_EQ(weights.scales.q_b_proj, counting(1, 3));
  EXPECT_EQ(weights.scales.kv_a_proj, counting(2, 4));
  EXPECT_TRUE(weights.scales.kv_b_proj.empty());
  EXPECT_EQ(weights.scales.o_proj, counting(2, 6));
  EXPECT_EQ(weights.q_a_proj[127], 1);
  EXPECT_EQ(weights.q_a_proj[128], 2);
}

TEST(WeightFiles, DequantisesFp8ByBlocks) {
  // 150 x 300: 2 x 3 blocks, the last of each axis incomplete. Every finite FP8 pattern occurs.
  constexpr std::int64_t kRows = 150;
  constexpr std::int64_t kCols = 300;
  std::vector<std::uint8_t> bits(kRows * kCols);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<std::uint8_t>(i * 7 + i / 256);
    if ((bits[i] & 0x7f) == 0x7f) bits[i] = 0x38;  // not the NaN
  }
  const std::vector<float> scales = {1.0F, 0.1F, 3.0F, 0x1p-9F, 7.5F, 1e-20F};
  test::TemporaryFolder folder;
  FileBuilder builder;
  builder.add("w", "F8_E4M3", {kRows, kCols}, bits).add("w_scale_inv", "F32", {2, 3}, scales);
  const WeightFiles files = one_file(folder, builder);
  const std::vector<float> loaded = files.load("w", kRows, kCols);
  EXPECT_EQ(files.load_scales("w", kRows, kCols), scales);
  ASSERT_EQ(loaded.size(), bits.size());
  for (std::int64_t row = 0; row < kRows; ++row) {
    for (std::int64_t col = 0; col < kCols; ++col) {
      const auto i = static_cast<std::size_t>(row * kCols + col);
      const auto block = static_cast<std::size_t>((row / 128) * 3 + col / 128);
      ASSERT_EQ(loaded[i], f8_e4m3_to_float(bits[i]) * scales[block]) << row << ", " << col;
    }
  }
}

TEST(WeightFiles, RefusesBadScales) {
  const std::vector<std::uint8_t> bits(4, 0x38);
  test::TemporaryFolder folder;
  const auto expect = [&](const FileBuilder& builder, ErrorCode code, std::string_view message) {
    const WeightFiles files = one_file(folder, builder);
    TRIBUTARY_EXPECT_ERROR(files.load("w", 2, 2), code, std::string(message));
  };
  const auto fp8 = [&] { return FileBuilder().add("w", "F8_E4M3", {2, 2}, bits); };
  constexpr float kInf = std::numeric_limits<float>::infinity();
  expect(fp8(), kBad, "'w' is f8_e4m3, but there is no 'w_scale_inv'");
  expect(fp8().add("w_scale_inv", "F32", {1}, counting(1)), kBad,
         "has shape [1], must have [1, 1]");
  expect(fp8().add("w_scale_inv", "F32", {1, 2}, counting(2)), kBad, "must have [1, 1]");
  expect(fp8().add("w_scale_inv", "BF16", {1, 1}, std::vector<std::uint16_t>{0x3f80}), kBad,
         "'w_scale_inv' is bf16, must be f32");
  expect(fp8().add("w_scale_inv", "I32", {1, 1}, std::vector<std::int32_t>{1}), kBad,
         "'w_scale_inv' is i32, must be f32");
  expect(fp8().add("w_scale_inv", "F32", {1, 1}, std::vector<float>{kInf}), kBad,
         "'w_scale_inv': element 0 is inf");
  expect(fp8().add("w_scale_inv", "F32", {1, 1}, std::vector<float>{-std::nanf("")}), kBad,
         "'w_scale_inv': element 0 is");
  expect(FileBuilder()
             .add("w", "F32", {2, 2}, counting(4))
             .add("w_scale_inv", "F32", {1, 1}, counting(1)),
         kBad, "'w' is f32 and yet has a 'w_scale_inv'");
}

TEST(WeightFiles, RefusesWeightsThatAreNoNumbers) {
  test::TemporaryFolder folder;
  const std::vector<std::uint8_t> fp8_nan = {0x38, 0x38, 0x38, 0xff};
  TRIBUTARY_EXPECT_ERROR(one_file(folder, FileBuilder()
                                              .add("w", "F8_E4M3", {2, 2}, fp8_nan)
                                              .add("w_scale_inv", "F32", {1, 1}, counting(1, 1)))
                             .load("w", 2, 2),
                         kBad, "'w': element 3 is");
  TRIBUTARY_EXPECT_ERROR(
      one_file(folder, FileBuilder().add("w", "BF16", {2}, std::vector<std::uint16_t>{0, 0x7f80}))
          .load("w", 2, 0),
      kBad, "'w': element 1 is inf");
}

TEST(WeightFiles, RefusesOtherDtypesAndShapes) {
  test::TemporaryFolder folder;
  FileBuilder builder;
  builder.add("f64", "F64", {2}, std::vector<double>{1, 2})
      .add("f16", "F16", {2}, std::vector<std::uint16_t>{1, 2})
      .add("fp8_vector", "F8_E4M3", {2}, std::vector<std::uint8_t>{0x38, 0x38})
      .add("f32", "F32", {2, 3}, counting(6));
  const WeightFiles files = one_file(folder, builder);
  EXPECT_TRUE(files.contains("f16"));
  EXPECT_FALSE(files.contains("f17"));
  EXPECT_EQ(files.load("f32", 2, 3), counting(6));
  constexpr ErrorCode kUnsupported = ErrorCode::kUnsupported;
  TRIBUTARY_EXPECT_ERROR(files.load("f64", 2, 0), kUnsupported, "'f64' is f64 of shape [2]");
  TRIBUTARY_EXPECT_ERROR(files.load("f16", 2, 0), kUnsupported, "'f16' is F16");
  TRIBUTARY_EXPECT_ERROR(files.load("fp8_vector", 2, 0), kUnsupported, "is f8_e4m3 of shape [2]");
  TRIBUTARY_EXPECT_ERROR(files.load("f32", 3, 2), kBad, "has shape [2, 3], must have [3, 2]");
  TRIBUTARY_EXPECT_ERROR(files.load("f32", 6, 0), kBad, "must have [6]");
  TRIBUTARY_EXPECT_ERROR(files.load("f17", 6, 0), ErrorCode::kNotFound, "no tensor 'f17'");
}

TEST(WeightFiles, ReadsAFolder) {
  test::TemporaryFolder folder;
  TRIBUTARY_EXPECT_ERROR(WeightFiles(folder.path()), ErrorCode::kNotFound, "no *.safetensors file");
  folder.write("model.safetensors.index.json", "{}");
  TRIBUTARY_EXPECT_ERROR(WeightFiles(folder.path()), ErrorCode::kNotFound,
                         "no *.safetensors file, only their index");
  // The scale may lie in another file than its weight.
  folder.write(
      "model-2.safetensors",
      FileBuilder().add("w", "F8_E4M3", {1, 2}, std::vector<std::uint8_t>{0x38, 0x40}).blob());
  folder.write("model-1.safetensors", FileBuilder()
                                          .add("w_scale_inv", "F32", {1, 1}, std::vector<float>{3})
                                          .add("v", "F32", {1}, counting(1, 9))
                                          .blob());
  const WeightFiles files(folder.path());
  EXPECT_THAT(files.load("w", 1, 2), testing::ElementsAre(3.0F, 6.0F));
  EXPECT_THAT(files.load("v", 1, 0), testing::ElementsAre(9.0F));
  TRIBUTARY_EXPECT_ERROR(files.load("x", 1, 0), ErrorCode::kNotFound,
                         "nor in the 1 files beside it");

  // The index names the file of what is missing.
  folder.write("model.safetensors.index.json",
               R"({"metadata": {"total_size": 12, "x": ["model-8"]},
                   "weight_map": {"w": "model-2.safetensors", "x": "model-7.safetensors",
                                  "y": "model-1.safetensors"}})");
  TRIBUTARY_EXPECT_ERROR(
      files.load("x", 1, 0), ErrorCode::kNotFound,
      "no tensor 'x': its index has it in 'model-7.safetensors', which is missing");
  TRIBUTARY_EXPECT_ERROR(files.load("y", 1, 0), ErrorCode::kNotFound,
                         "in 'model-1.safetensors', which has no such tensor");
  TRIBUTARY_EXPECT_ERROR(files.load("z", 1, 0), ErrorCode::kNotFound,
                         "nor in the 1 files beside it");
  folder.write("model.safetensors.index.json", R"({"weight_map": {"x": )");
  TRIBUTARY_EXPECT_ERROR(files.load("x", 1, 0), ErrorCode::kNotFound,
                         "nor in the 1 files beside it");

  folder.write("model-3.safetensors",
               FileBuilder().add("v", "F16", {1}, std::vector<std::uint16_t>{0}).blob());
  TRIBUTARY_EXPECT_ERROR(WeightFiles(folder.path()), kBad,
                         "model-3.safetensors: tensor 'v' is also in");
  folder.write("model-3.safetensors", "garbage");
  TRIBUTARY_EXPECT_ERROR(WeightFiles(folder.path()), kBad, "model-3.safetensors: ");
  TRIBUTARY_EXPECT_ERROR(WeightFiles(folder.path() / "absent"), ErrorCode::kIo, "cannot open");
}

}  // namespace
}  // namespace tributary
