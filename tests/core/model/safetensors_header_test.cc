// Valid headers, and headers that are wrong in every way we could think of.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/model/safetensors.h"
#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

using test::safetensors_blob;

SafetensorsHeader parse(const std::string& blob) {
  return parse_safetensors(std::as_bytes(std::span(blob)), "file");
}

/// {"t": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}.
std::string one_tensor(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return fmt::format(R"({{"t":{{"dtype":"{}","shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

const std::string& good_header() {
  static const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"shape":[],"dtype":"F32","data_offsets":[0,4]},)"
      R"("none":{"dtype":"F64","shape":[0,7],"data_offsets":[4,4]}}   )";
  return header;
}
std::string good_blob() {
  return safetensors_blob(good_header(), "0123456789abcdef");
}

TEST(SafetensorsHeader, ReadsEveryKindOfTensor) {
  const std::string blob = good_blob();
  const SafetensorsHeader header = parse(blob);
  EXPECT_THAT(header.metadata, testing::ElementsAre(testing::Pair("format", "pt")));
  ASSERT_EQ(header.tensors.size(), 3U);
  const TensorView& scalar = header.tensors.at("a");
  EXPECT_EQ(scalar.dtype, DType::kF32);
  EXPECT_TRUE(scalar.shape.empty());
  EXPECT_EQ(scalar.bytes.size(), 4U);
  EXPECT_EQ(static_cast<const void*>(scalar.bytes.data()), blob.data() + 8 + good_header().size());
  const TensorView& matrix = header.tensors.at("b");
  EXPECT_EQ(matrix.shape_text(), "[2, 3]");
  EXPECT_EQ(matrix.bytes.size(), 12U);
  EXPECT_EQ(matrix.bytes.data(), scalar.bytes.data() + 4);
  EXPECT_TRUE(header.tensors.at("none").bytes.empty());
}

TEST(SafetensorsHeader, ReadsAnEmptyFile) {
  EXPECT_TRUE(parse(safetensors_blob("{}")).tensors.empty());
}

TEST(SafetensorsHeader, KnowsEveryDtypeOfTheFormat) {
  // 8 elements, so that sub-byte types fill whole bytes: bytes == bits per element.
  const std::vector<std::pair<std::string, int>> dtypes = {
      {"F64", 64},        {"F32", 32},        {"BF16", 16},   {"F8_E4M3", 8}, {"BOOL", 8},
      {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"U8", 8},      {"I8", 8},
      {"F8_E5M2", 8},     {"F8_E8M0", 8},     {"I16", 16},    {"U16", 16},    {"F16", 16},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I32", 32},    {"U32", 32},    {"C64", 64},
      {"I64", 64},        {"U64", 64}};
  for (const auto& dtype : dtypes) {
    const std::string& name = dtype.first;
    SCOPED_TRACE(name);
    const auto size = static_cast<std::size_t>(dtype.second);
    const SafetensorsHeader header = parse(safetensors_blob(
        one_tensor(name, "[8]", fmt::format("[0,{}]", size)), std::string(size, 'x')));
    const bool read = name == "F64" || name == "F32" || name == "BF16" || name == "F8_E4M3" ||
                      name == "U8" || name == "I32";
    EXPECT_EQ(header.tensors.count("t"), read ? 1U : 0U);
    EXPECT_EQ(header.unreadable.count("t"), read ? 0U : 1U);
    // One byte less or more is a lie for these too.
    for (const std::size_t other : {size - 1, size + 1}) {
      TRIBUTARY_EXPECT_ERROR(
          parse(safetensors_blob(one_tensor(name, "[8]", fmt::format("[0,{}]", other)),
                                 std::string(other, 'x'))),
          ErrorCode::kMalformedInput, "takes");
    }
  }
  TRIBUTARY_EXPECT_ERROR(parse(safetensors_blob(one_tensor("F4", "[3]", "[0,2]"), "xx")),
                         ErrorCode::kMalformedInput, "3 elements of F4 do not fill whole bytes");
  for (const char* unknown : {"F31", "f32", "", "F32 "}) {
    TRIBUTARY_EXPECT_ERROR(parse(safetensors_blob(one_tensor(unknown, "[1]", "[0,4]"), "xxxx")),
                           ErrorCode::kMalformedInput, "unknown dtype");
  }
}

TEST(SafetensorsHeader, RefusesEveryTruncation) {
  const std::string blob = good_blob();
  for (std::size_t length = 0; length < blob.size(); ++length) {
    TRIBUTARY_EXPECT_ERROR(parse(blob.substr(0, length)), ErrorCode::kMalformedInput, "file: ");
  }
  // The header cut at every byte, with a length that fits: only the padding may go.
  const std::size_t padding = 3;
  for (std::size_t length = 0; length + padding < good_header().size(); ++length) {
    const std::string cut = safetensors_blob(good_header().substr(0, length), "0123456789abcdef");
    TRIBUTARY_EXPECT_ERROR(parse(cut), ErrorCode::kMalformedInput, "file: ");
  }
}

TEST(SafetensorsHeader, RefusesEveryFalseHeaderLength) {
  const std::uint64_t length = good_header().size();
  for (std::uint64_t stated = 0; stated < length + 32; ++stated) {
    if (stated == length) continue;
    EXPECT_THROW((void)parse(safetensors_blob(good_header(), "0123456789abcdef", stated)), Error)
        << stated;
  }
  for (const std::uint64_t stated :
       {std::uint64_t{100'000'001}, std::uint64_t{1} << 32, std::uint64_t{1} << 63,
        ~std::uint64_t{0} - 7, ~std::uint64_t{0}}) {
    TRIBUTARY_EXPECT_ERROR(parse(safetensors_blob(good_header(), "0123456789abcdef", stated)),
                           ErrorCode::kMalformedInput, "must be at most 100000000");
  }
  TRIBUTARY_EXPECT_ERROR(parse(safetensors_blob(good_header(), "", 100'000'000)),
                         ErrorCode::kMalformedInput, "header length is 100000000, but only");
}

TEST(SafetensorsHeader, EveryChangedByteIsRefusedOrConsistent) {
  // Names and metadata may change freely; whatever is accepted must still cover the data.
  const std::string good = good_blob();
  for (std::size_t i = 0; i < 8 + good_header().size(); ++i) {
    for (const int flip : {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80}) {
      std::string blob = good;
      blob[i] = static_cast<char>(blob[i] ^ flip);
      try {
        const SafetensorsHeader header = parse(blob);
        std::size_t covered = 0;
        for (const auto& [name, tensor] : header.tensors) covered += tensor.bytes.size();
        if (header.unreadable.empty()) {
          EXPECT_EQ(covered, 16U) << "byte " << i << " ^ " << flip;
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kMalformedInput) << error.what();
      }
    }
  }
}

struct Lie {
  std::string header;
  std::string message;
  std::size_t data_bytes = 8;
};

TEST(SafetensorsHeader, RefusesLiesAboutOneTensor) {
  const std::vector<Lie> lies = {
      {one_tensor("F32", "[2]", "[0,7]"), "takes 8 bytes, but data_offsets [0, 7] hold 7"},
      {one_tensor("F32", "[3]", "[0,8]"), "F32 [3] takes 12 bytes"},
      {one_tensor("F32", "[2]", "[0,16]"), "no range within the 8 bytes of data"},
      {one_tensor("F32", "[2]", "[8,0]"), "data_offsets [8, 0] are no range"},
      {one_tensor("F32", "[2]", "[9,17]"), "no range within"},
      {one_tensor("F32", "[0]", "[9,9]"), "no range within"},
      {one_tensor("F32", "[2]", "[18446744073709551608,18446744073709551615]"), "no range within"},
      {one_tensor("F32", "[2]", "[0]"), "data_offsets has 1 numbers, must have 2"},
      {one_tensor("F32", "[2]", "[]"), "data_offsets has 0 numbers"},
      {one_tensor("F32", "[2]", "[0,8,8]"), "'data_offsets' has more than 2 numbers"},
      {one_tensor("F32", "[2]", "[-8,0]"), "holds the number -8"},
      {one_tensor("F32", "[2]", "[0,8.0]"), "holds the number '8.0'"},
      {one_tensor("F32", "[2]", "[0,18446744073709551624]"), "holds the number '18446744073709551"},
      {one_tensor("F32", "[2]", "[0,\"8\"]"), "holds the string '8'"},
      {one_tensor("F32", "[-2]", "[0,8]"), "holds the number -2"},
      {one_tensor("F32", "[2.0]", "[0,8]"), "holds the number '2.0'"},
      {one_tensor("F32", "[null]", "[0,8]"), "holds null"},
      {one_tensor("F32", "[true]", "[0,8]"), "holds a boolean"},
      {one_tensor("F32", "[[2]]", "[0,8]"), "holds an array"},
      {one_tensor("F32", "[{}]", "[0,8]"), "holds an object"},
      {one_tensor("F32", "2", "[0,8]"), "'shape' holds the number 2"},
      // Products that wrap: 2^62 * 4 bytes = 2^64 = 0, and 2^32 * 2^32 elements = 0.
      {one_tensor("F32", "[4611686018427387904]", "[0,0]"), "more than 2^57 elements", 0},
      {one_tensor("F32", "[4294967296,4294967296]", "[0,0]"), "more than 2^57 elements", 0},
      {one_tensor("F32", "[4611686018427387905]", "[0,4]"), "more than 2^57 elements", 4},
      {one_tensor("F32", "[18446744073709551615]", "[0,8]"), "more than 2^57 elements"},
      {one_tensor("F32", "[9223372036854775808,0]", "[0,0]"), "more than 2^57 elements", 0},
      {one_tensor("F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]", "[0,8]"),
       "'shape' has more than 16 numbers"},
      {R"({"t":{"shape":[2],"data_offsets":[0,8]}})", "tensor 't' has no dtype"},
      {R"({"t":{"dtype":"F32","data_offsets":[0,8]}})", "tensor 't' has no shape"},
      {R"({"t":{"dtype":"F32","shape":[2]}})", "tensor 't' has no data_offsets"},
      {R"({"t":{}})", "tensor 't' has no dtype"},
      {R"({"t":{"dtype":1,"shape":[2],"data_offsets":[0,8]}})", "'dtype' holds the number 1"},
      {R"({"t":{"dtype":null,"shape":[2],"data_offsets":[0,8]}})", "'dtype' holds null"},
      {R"({"t":{"dtype":["F32"],"shape":[2],"data_offsets":[0,8]}})", "'dtype' holds an array"},
      {R"({"t":{"shape":"F32"}})", "'shape' holds the string 'F32'"},
      {R"({"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "'x' is not a field"},
      {R"({"t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "'dtype' occurs twice"},
      {R"({"t":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})",
       "'shape' occurs twice"},
      {R"({"t":[]})", "holds an array"},
      {R"({"t":null})", "holds null"},
      {R"({"t":"F32"})", "holds the string"},
      {R"({"t":3})", "holds the number 3"},
      {R"({"t":{"dtype":{}}})", "holds an object"},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.header);
    TRIBUTARY_EXPECT_ERROR(parse(safetensors_blob(lie.header, std::string(lie.data_bytes, 'x'))),
                           ErrorCode::kMalformedInput, lie.message);
  }
}

TEST(SafetensorsHeader, RefusesOverlapsGapsAndDuplicates) {
  const auto two = [](std::string_view first, std::string_view second, std::size_t data_bytes) {
    return safetensors_blob(fmt::format(R"({{"a":{{"dtype":"F32","shape":[1],"data_offsets":{}}},)"
                                        R"("b":{{"dtype":"F32","shape":[1],"data_offsets":{}}}}})",
                                        first, second),
                            std::string(data_bytes, 'x'));
  };
  constexpr ErrorCode kBad = ErrorCode::kMalformedInput;
  EXPECT_NO_THROW((void)parse(two("[0,4]", "[4,8]", 8)));
  EXPECT_NO_THROW((void)parse(two("[4,8]", "[0,4]", 8)));
  TRIBUTARY_EXPECT_ERROR(parse(two("[0,4]", "[0,4]", 4)), kBad, "overlapping");
  TRIBUTARY_EXPECT_ERROR(parse(two("[0,4]", "[2,6]", 6)), kBad, "overlapping");
  TRIBUTARY_EXPECT_ERROR(parse(two("[0,4]", "[5,9]", 9)), kBad,
                         "'b' begins at byte 5, leaving a gap");
  TRIBUTARY_EXPECT_ERROR(parse(two("[1,5]", "[5,9]", 9)), kBad, "'a' begins at byte 1");
  TRIBUTARY_EXPECT_ERROR(parse(two("[0,4]", "[4,8]", 9)), kBad,
                         "cover 8 bytes, but the file holds 9");
  TRIBUTARY_EXPECT_ERROR(parse(safetensors_blob("{}", "x")), kBad, "cover 0 bytes");
  // An empty tensor in the middle of another one's bytes.
  TRIBUTARY_EXPECT_ERROR(
      parse(safetensors_blob(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("b":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}})",
                             "xxxx")),
      kBad, "overlapping");
  TRIBUTARY_EXPECT_ERROR(
      parse(safetensors_blob(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                             R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                             "xxxxxxxx")),
      kBad, "tensor 'a' occurs twice");
}

TEST(SafetensorsHeader, RefusesBadMetadata) {
  for (const char* metadata : {R"({"a":1})", R"({"a":null})", R"({"a":{}})", R"({"a":["x"]})", "[]",
                               "null", R"("x")", R"({"a":"x","a":"y"})"}) {
    SCOPED_TRACE(metadata);
    TRIBUTARY_EXPECT_ERROR(
        parse(safetensors_blob(fmt::format(R"({{"__metadata__":{}}})", metadata))),
        ErrorCode::kMalformedInput, "__metadata__");
  }
  TRIBUTARY_EXPECT_ERROR(parse(safetensors_blob(R"({"__metadata__":{},"__metadata__":{}})")),
                         ErrorCode::kMalformedInput, "'__metadata__' occurs twice");
}

TEST(SafetensorsHeader, RefusesWhatIsNotOneJsonObject) {
  const std::vector<std::string> headers = {
      "[]",     "\"x\"",         "1",        " {}",    "\xef\xbb\xbf{}", "{}{}", "{},",
      "{}\x01", "{\"\xff\":{}}", "{'a':{}}", "{\"a\"", "{//\n}"};
  for (const std::string& header : headers) {
    SCOPED_TRACE(header);
    EXPECT_THROW((void)parse(safetensors_blob(header)), Error);
  }
  TRIBUTARY_EXPECT_ERROR(parse(safetensors_blob(std::string("{}\0", 3))),
                         ErrorCode::kMalformedInput, "NUL at byte 2");
}

TEST(SafetensorsHeader, NestingBombsEndAtTheirFirstUnexpectedBracket) {
  for (const char* unit : {"[", "{\"shape\":"}) {
    std::string header = "{\"t\":";
    while (header.size() < 1'000'000) header += unit;
    TRIBUTARY_EXPECT_ERROR(parse(safetensors_blob(header)), ErrorCode::kMalformedInput,
                           "where the format has none");
  }
}

TEST(SafetensorsHeader, MessagesOfHostileNamesAreShort) {
  const std::string name(100'000, 'n');
  const auto error = test::error_of(
      [&] { (void)parse(safetensors_blob(fmt::format(R"({{"{}":{{"dtype":3}}}})", name))); });
  ASSERT_TRUE(error.has_value());
  EXPECT_LT(std::string_view(error->what()).size(), 400U);
}

}  // namespace
}  // namespace tributary
