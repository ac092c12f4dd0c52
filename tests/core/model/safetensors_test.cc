// Look-ups and values of mapped files: the golden file of the repository, and small ones made here.
#include "core/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <limits>

#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

TEST(SafetensorsFile, ReadsTheTinyGoldenFile) {
  const SafetensorsFile file(test::tiny_safetensors());
  EXPECT_EQ(file.header().tensors.size(), 24U);
  EXPECT_EQ(file.header().metadata.at("format"), "mla-golden-1");
  EXPECT_TRUE(file.contains("input.hidden_states"));
  EXPECT_FALSE(file.contains("input"));
  EXPECT_FALSE(file.contains("__metadata__"));

  const TensorView& hidden = file.tensor("input.hidden_states");
  EXPECT_EQ(hidden.name, "input.hidden_states");
  EXPECT_EQ(hidden.dtype, DType::kBF16);
  EXPECT_EQ(hidden.shape_text(), "[2, 42, 256]");
  EXPECT_EQ(hidden.bytes.size(), 2U * 42 * 256 * dtype_bytes(DType::kBF16));
  EXPECT_EQ(file.tensor("f32.decode.lse").dtype, DType::kF64);
  EXPECT_EQ(file.tensor("f32.cache.kv").dtype, DType::kF32);

  // The ranges cover the data once: sizes add up to what the file holds after its header.
  std::size_t total = 0;
  for (const auto& [name, tensor] : file.header().tensors) total += tensor.bytes.size();
  EXPECT_EQ(total, std::filesystem::file_size(file.path()) - 8 - 7712);
}

TEST(SafetensorsFile, LooksUpByNameAndShape) {
  const SafetensorsFile file(test::tiny_safetensors());
  const std::array<std::int64_t, 2> good = {144, 256};
  const std::array<std::int64_t, 2> swapped = {256, 144};
  const char* name = "self_attn.kv_a_proj_with_mqa.weight";
  EXPECT_EQ(&file.tensor(name, good), &file.tensor(name));
  TRIBUTARY_EXPECT_ERROR(file.tensor(name, swapped), ErrorCode::kMalformedInput,
                         "has shape [144, 256], must have [256, 144]");
  TRIBUTARY_EXPECT_ERROR(file.tensor(name, std::span(good).first(1)), ErrorCode::kMalformedInput,
                         "must have [144]");
  TRIBUTARY_EXPECT_ERROR(file.tensor("self_attn.k_proj.weight"), ErrorCode::kNotFound,
                         "tiny.safetensors: no tensor 'self_attn.k_proj.weight' among its 24");
}

TEST(SafetensorsFile, SaysThatATensorIsThereButNotReadable) {
  test::TemporaryFolder folder;
  const auto path = folder.write(
      "mixed.safetensors",
      test::safetensors_blob(R"({"ids":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                             R"("w":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                             test::bytes_of<std::int64_t>({7}) + test::bytes_of<float>({1.5F})));
  const SafetensorsFile file(path);
  EXPECT_TRUE(file.contains("ids"));
  EXPECT_THAT(to_floats(file.tensor("w")), testing::ElementsAre(1.5F));
  TRIBUTARY_EXPECT_ERROR(file.tensor("ids"), ErrorCode::kUnsupported, "'ids' is I64; only");
}

TEST(SafetensorsFile, CopiesOutliveTheOriginal) {
  auto file = std::make_unique<SafetensorsFile>(test::tiny_safetensors());
  const std::vector<float> before = to_floats(file->tensor("f32.cache.pe"));
  const SafetensorsFile copy = *file;
  file.reset();
  EXPECT_EQ(to_floats(copy.tensor("f32.cache.pe")), before);
}

TEST(SafetensorsFile, RefusesWhatIsNoFile) {
  test::TemporaryFolder folder;
  TRIBUTARY_EXPECT_ERROR(SafetensorsFile(folder.path() / "absent"), ErrorCode::kIo, "cannot open");
  TRIBUTARY_EXPECT_ERROR(SafetensorsFile(folder.path()), ErrorCode::kIo, "is a directory");
  TRIBUTARY_EXPECT_ERROR(SafetensorsFile(test::case_file("models/lfs.safetensors")),
                         ErrorCode::kMalformedInput, "lfs.safetensors: is a Git LFS pointer");
  TRIBUTARY_EXPECT_ERROR(SafetensorsFile(test::case_file("models/page.safetensors")),
                         ErrorCode::kMalformedInput, "page.safetensors: is an HTML page");
  TRIBUTARY_EXPECT_ERROR(SafetensorsFile(folder.write("empty", "")), ErrorCode::kMalformedInput,
                         "0 bytes, too short");
  const auto pipe = folder.path() / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  TRIBUTARY_EXPECT_ERROR(SafetensorsFile(pipe), ErrorCode::kIo, "not a regular file");
}

/// A view of `bytes`, which begin one past an aligned address where `offset` is 1.
TensorView view_of(const std::string& bytes, DType dtype, std::size_t offset) {
  const auto all = std::as_bytes(std::span(bytes)).subspan(offset);
  return {.name = "t",
          .dtype = dtype,
          .shape = {static_cast<std::int64_t>(all.size() / dtype_bytes(dtype))},
          .bytes = all};
}

TEST(Widening, KeepsEveryValueAtEveryAlignment) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> floats = {0.0F, -0.0F, 1.5F, -3.0e38F, 1e-45F, kInf};
  const std::vector<double> doubles(floats.begin(), floats.end());
  const std::vector<std::uint16_t> bf16s = {0x0000, 0x8000, 0x3fc0, 0xff62, 0x0001, 0x7f80};
  for (const std::size_t offset : {0U, 1U}) {
    const std::string pad(offset, 'x');
    const std::string as_f32 = pad + test::bytes_of(floats);
    EXPECT_EQ(to_floats(view_of(as_f32, DType::kF32, offset)), floats);
    EXPECT_EQ(to_doubles(view_of(as_f32, DType::kF32, offset)), doubles);
    const std::string as_f64 = pad + test::bytes_of(doubles);
    EXPECT_EQ(to_floats(view_of(as_f64, DType::kF64, offset)), floats);
    EXPECT_EQ(to_doubles(view_of(as_f64, DType::kF64, offset)), doubles);
    const std::string as_bf16 = pad + test::bytes_of(bf16s);
    const std::vector<float> widened = to_floats(view_of(as_bf16, DType::kBF16, offset));
    EXPECT_THAT(widened, testing::ElementsAre(0.0F, -0.0F, 1.5F, -0x1.c4p+127F, 0x1p-133F, kInf));
    EXPECT_EQ(to_doubles(view_of(as_bf16, DType::kBF16, offset)),
              std::vector<double>(widened.begin(), widened.end()));
  }
}

TEST(Widening, RoundsDoublesToNearest) {
  const std::string bytes = test::bytes_of<double>({1 + 0x1p-24, 1 + 0x1p-24 + 0x1p-50});
  EXPECT_THAT(to_floats(view_of(bytes, DType::kF64, 0)),
              testing::ElementsAre(1.0F, 1.0F + 0x1p-23F));
}

TEST(Widening, RefusesFp8WithoutItsScales) {
  const std::string bytes(4, '\x38');
  TRIBUTARY_EXPECT_ERROR(to_floats(view_of(bytes, DType::kF8E4M3, 0)), ErrorCode::kUnsupported,
                         "without its scales");
  TRIBUTARY_EXPECT_ERROR(to_doubles(view_of(bytes, DType::kF8E4M3, 0)), ErrorCode::kUnsupported,
                         "'t' is f8_e4m3");
}

}  // namespace
}  // namespace tributary
