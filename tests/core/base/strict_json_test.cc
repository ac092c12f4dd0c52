// The JSON reader's bounds.
#include "core/base/strict_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/core/model/model_files.h"

namespace tributary {
namespace {

std::string nested(int levels) {
  return std::string(static_cast<std::size_t>(levels), '[') +
         std::string(static_cast<std::size_t>(levels), ']');
}

TEST(StrictJson, ReadsOneValue) {
  const auto value = parse_strict_json(R"( {"a": [1, -2, 3.5, "x", null, true]} )", "source");
  EXPECT_EQ(value.at("a").size(), 6U);
  EXPECT_EQ(parse_strict_json("7", "source"), 7);
}

TEST(StrictJson, RefusesWhatIsNotOneJsonValue) {
  using namespace std::string_literals;
  for (const std::string& text :
       {""s, " "s, "{"s, "{} {}"s, "nul"s, R"({"a":1,})"s, "// x\n1"s, "1e999"s, "NaN"s,
        "\"\xff\""s, "\"\xc0\x80\""s, "1\0"s, "1\0junk"s, "'a'"s}) {
    SCOPED_TRACE(text);
    TRIBUTARY_EXPECT_ERROR(parse_strict_json(text, "some file"), ErrorCode::kMalformedInput,
                           "some file: not valid JSON: ");
  }
}

TEST(StrictJson, RefusesEqualKeysOfOneObject) {
  TRIBUTARY_EXPECT_ERROR(parse_strict_json(R"({"a": 1, "b": {"c": 1, "c": 2}})", "f"),
                         ErrorCode::kMalformedInput, "f: JSON key 'c' occurs twice");
  TRIBUTARY_EXPECT_ERROR(parse_strict_json(R"({"a": 1, "b": {"a": 1}, "a": 2})", "f"),
                         ErrorCode::kMalformedInput, "f: JSON key 'a' occurs twice");
  EXPECT_NO_THROW((void)parse_strict_json(R"([{"a": 1}, {"a": {"a": 2}}])", "f"));
}

/// Takes minutes if the reader looks at all earlier elements at the end of each.
TEST(StrictJson, ALongArrayIsReadOnce) {
  constexpr std::size_t kElements = 400'000;
  std::string text = "[";
  for (std::size_t i = 0; i < kElements; ++i) text += "{\"a\":[]},";
  text.back() = ']';
  EXPECT_EQ(parse_strict_json(text, "f").size(), kElements);
}

TEST(StrictJson, BoundsTheDepth) {
  EXPECT_NO_THROW((void)parse_strict_json(nested(kMaxJsonDepth), "f"));
  TRIBUTARY_EXPECT_ERROR(parse_strict_json(nested(kMaxJsonDepth + 1), "f"),
                         ErrorCode::kMalformedInput, "nests deeper than 32 levels");
  TRIBUTARY_EXPECT_ERROR(parse_strict_json(std::string(1'000'000, '['), "f"),
                         ErrorCode::kMalformedInput, "nests deeper than 32 levels");
}

TEST(StrictJson, MessagesAreShortAndPrintable) {
  const std::string hostile = "{\"" + std::string(100'000, '\x1b') + "\"";
  const auto error = test::error_of([&] { (void)parse_strict_json(hostile, "f"); });
  ASSERT_TRUE(error.has_value());
  const std::string message = error->what();
  EXPECT_LT(message.size(), 1000U);
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace tributary
