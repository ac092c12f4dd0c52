// Loading the golden file of the repository, and falsified copies of it.
#include "core/reference/golden_case.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "core/base/dtype.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/model/model_files.h"
#include "tests/core/reference/golden_files.h"

namespace tributary {
namespace {

using test::golden_file;

TEST(GoldenCase, Tiny) {
  const GoldenCase golden = load_golden_case(test::tiny_safetensors());
  EXPECT_EQ(golden.name, "tiny");
  EXPECT_EQ(golden.batch, 2);
  EXPECT_EQ(golden.prefill_len, 37);
  EXPECT_EQ(golden.decode_steps, 5);
  EXPECT_EQ(golden.tokens(), 42);
  EXPECT_EQ(golden.shape.hidden_size, 256);
  EXPECT_EQ(golden.shape.num_attention_heads, 4);
  EXPECT_EQ(golden.shape.q_lora_rank, 96);
  EXPECT_EQ(golden.shape.latent_dim(), 144);
  EXPECT_EQ(golden.hidden_states.size(), 2U * 42 * 256);
  ASSERT_EQ(golden.groups.size(), 2U);
  EXPECT_EQ(golden.groups[0].name, "f32");
  EXPECT_EQ(golden.groups[0].row_format, RowFormat::kF32);
  EXPECT_EQ(golden.groups[1].name, "bf16cache");
  EXPECT_EQ(golden.groups[1].row_format, RowFormat::kBF16);
  for (const GoldenGroup& group : golden.groups) {
    EXPECT_EQ(group.prefill_output.size(), 2U * 37 * 256);
    EXPECT_EQ(group.decode_output.size(), 2U * 5 * 256);
    EXPECT_EQ(group.cache_kv.size(), 2U * 42 * 128);
    EXPECT_EQ(group.cache_pe.size(), 2U * 42 * 16);
    EXPECT_EQ(group.decode_q_absorbed.size(), 2U * 5 * 4 * 128);
    EXPECT_EQ(group.decode_q_pe.size(), 2U * 5 * 4 * 16);
    EXPECT_EQ(group.decode_lse.size(), 2U * 5 * 4);
    EXPECT_EQ(group.decode_latent.size(), 2U * 5 * 4 * 128);
  }
}

TEST(GoldenCase, TheOtherFiles) {
  for (const std::string_view name : test::kGoldenNames) {
    const auto path = golden_file(name);
    TRIBUTARY_SKIP_WITHOUT(path);
    const GoldenCase golden = load_golden_case(path);
    EXPECT_EQ(golden.name, name);
    EXPECT_EQ(golden.groups.size(), 2U);
  }
}

TEST(GoldenCase, ASelection) {
  EXPECT_FALSE(find_golden_selection(test::tiny_safetensors()));
  const auto path = golden_file("dsa-tiny");
  TRIBUTARY_SKIP_WITHOUT(path);
  const auto golden = find_golden_selection(path);
  ASSERT_TRUE(golden);
  EXPECT_EQ(golden->name, "dsa-tiny");
  EXPECT_EQ(golden->batch, 2);
  EXPECT_EQ(golden->prefill_len, 270);
  EXPECT_EQ(golden->decode_steps, 6);
  EXPECT_EQ(golden->topk, 48);
  EXPECT_EQ(golden->softmax_scale, 0.125);
  EXPECT_EQ(golden->rows.size(), 2U * 276 * 160);
  EXPECT_EQ(golden->query.size(), 2U * 6 * 4 * 160);
  EXPECT_EQ(golden->selected.size(), 2U * 6 * 48);
  EXPECT_EQ(golden->lse.size(), 2U * 6 * 4);
  EXPECT_EQ(golden->latent.size(), 2U * 6 * 4 * 128);
  EXPECT_EQ(golden->dense_latent.size(), golden->latent.size());
  // A row that was made with scales of powers of two is exact in bf16, and we make the same bytes.
  for (const float value : golden->rows) EXPECT_EQ(value, to_float(to_bf16(value)));
  const RowLayout layout{RowFormat::kFp8DsMla, 128, 32};
  ASSERT_EQ(golden->stored.size(), 2U * 276 * layout.bytes());
  std::vector<std::byte> made(golden->stored.size());
  layout.encode(golden->plain_rows, made.data());
  EXPECT_EQ(made, golden->stored);
}

TEST(GoldenCase, ASelectionThatIsNotInOrder) {
  const auto path = golden_file("dsa-tiny");
  TRIBUTARY_SKIP_WITHOUT(path);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const auto golden = find_golden_selection(path);
  ASSERT_TRUE(golden);
  const std::string list(reinterpret_cast<const char*>(golden->selected.data()),
                         golden->selected.size() * sizeof(std::int32_t));
  const auto lying = [&](std::size_t element, std::int32_t value) {
    std::string changed = bytes;
    for (auto at = changed.find(list); at != std::string::npos; at = changed.find(list, at + 1)) {
      std::memcpy(changed.data() + at + element * sizeof value, &value, sizeof value);
    }
    test::TemporaryFolder folder;
    return code_of(
        [&] { (void)find_golden_selection(folder.write("lying.safetensors", changed)); });
  };
  EXPECT_EQ(lying(0, golden->selected[0]), ErrorCode::kOk);
  EXPECT_EQ(lying(0, -2), ErrorCode::kMalformedInput);
  EXPECT_EQ(lying(1, golden->selected[0]), ErrorCode::kMalformedInput);
  EXPECT_EQ(lying(1, -1), ErrorCode::kMalformedInput);
  EXPECT_EQ(lying(47, 271), ErrorCode::kMalformedInput);
}

/// A copy of the repository's file with every `from` replaced by `to`, of the same length, so that
/// all offsets stay right.
class LyingGoldenFile : public testing::Test {
 protected:
  std::filesystem::path replaced(std::string_view from, std::string_view to) {
    EXPECT_EQ(from.size(), to.size());
    std::ifstream file(test::tiny_safetensors(), std::ios::binary);
    std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    int count = 0;
    for (std::size_t at = bytes.find(from); at != std::string::npos; at = bytes.find(from, at)) {
      bytes.replace(at, from.size(), to);
      ++count;
    }
    EXPECT_GT(count, 0) << from;
    return folder_.write("lying.safetensors", bytes);
  }

  test::TemporaryFolder folder_;
};

constexpr ErrorCode kMalformed = ErrorCode::kMalformedInput;

TEST_F(LyingGoldenFile, Format) {
  const auto path = replaced("mla-golden-1", "mla-golden-9");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(path), ErrorCode::kUnsupported, "'mla-golden-9'");
}

TEST_F(LyingGoldenFile, MissingMetadata) {
  const auto path = replaced(R"("case")", R"("cose")");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(path), kMalformed, "metadata `case` is missing");
}

TEST_F(LyingGoldenFile, CaseIsNoJson) {
  const auto path = replaced(R"({\"name\")", R"([\"name\")");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(path), kMalformed, "metadata `case`");
}

TEST_F(LyingGoldenFile, CountsOutOfBounds) {
  const auto zero = replaced(R"(\"batch\": 2)", R"(\"batch\": 0)");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(zero), kMalformed, "batch must be an integer from 1");
  const auto text = replaced(R"(\"prefill_len\": 37)", R"(\"prefill_len\": [])");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(text), kMalformed, "prefill_len must be an integer");
}

TEST_F(LyingGoldenFile, CountsThatTheTensorsContradict) {
  const auto path = replaced(R"(\"decode_steps\": 5)", R"(\"decode_steps\": 6)");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(path), kMalformed, "input.hidden_states");
}

TEST_F(LyingGoldenFile, SoftmaxScale) {
  const auto path = replaced(R"("0.14433756729740643")", R"("0.14433756729740743")");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(path), kMalformed, "softmax_scale");
  const auto text = replaced(R"("0.14433756729740643")", R"("[.14433756729740743")");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(text), kMalformed, "softmax_scale");
}

TEST_F(LyingGoldenFile, MissingWeight) {
  const auto path = replaced("self_attn.o_proj.weight", "self_attx.o_proj.weight");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(path), ErrorCode::kNotFound, "self_attn.o_proj.weight");
  const auto other = replaced("self_attn.o_proj.weight", "self_attn.o_proj.waight");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(other), ErrorCode::kUnsupported,
                         "self_attn.o_proj.waight");
}

TEST_F(LyingGoldenFile, IncompleteGroup) {
  const auto path = replaced("f32.decode.lse", "f32.decode.lze");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(path), ErrorCode::kNotFound, "f32.decode.lse");
}

TEST_F(LyingGoldenFile, TensorOfAnotherShape) {
  const auto path = replaced(R"("shape":[2,5,4])", R"("shape":[2,4,5])");
  TRIBUTARY_EXPECT_ERROR(load_golden_case(path), kMalformed, "decode.lse");
}

TEST_F(LyingGoldenFile, OneGroupIsEnough) {
  const GoldenCase golden = load_golden_case(replaced(R"("f32.)", R"("g32.)"));
  ASSERT_EQ(golden.groups.size(), 1U);
  EXPECT_EQ(golden.groups.front().name, "bf16cache");
}

TEST_F(LyingGoldenFile, NoSuchFile) {
  TRIBUTARY_EXPECT_ERROR(load_golden_case(folder_.path() / "none"), ErrorCode::kIo, "none");
}

}  // namespace
}  // namespace tributary
