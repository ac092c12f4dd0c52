#include "comm/wire/access_token.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/core/base/expect_error.h"

namespace tributary::wire {
namespace {

TEST(AccessTokenTest, IsAFunctionOfKeyAndSequence) {
  // The values were computed with Python: hmac.new(bytes(range(16)), (0x100000002).to_bytes(8,
  // "little"), "sha256").
  Token key{};
  for (std::size_t i = 0; i < key.size(); ++i) key.at(i) = static_cast<std::uint8_t>(i);
  EXPECT_EQ(token_text(access_token(key, 0x100000002)), "6adba9f58de99a2c9e01efcfa591665a");
  EXPECT_NE(access_token(key, 0x100000002), access_token(key, 0x100000003));
  key.back() ^= 1;
  EXPECT_NE(token_text(access_token(key, 0x100000002)), "6adba9f58de99a2c9e01efcfa591665a");
}

TEST(AccessTokenTest, RandomOnesDiffer) {
  std::set<Token> tokens;
  for (int i = 0; i < 100; ++i) tokens.insert(random_token());
  EXPECT_EQ(tokens.size(), 100U);
}

TEST(AccessTokenTest, TextGoesThereAndBack) {
  const Token token = random_token();
  EXPECT_EQ(parse_token(token_text(token)), token);
  for (const char* bad :
       {"", "00", "0000000000000000000000000000000g", "0000000000000000000000000000000A",
        "000000000000000000000000000000000"}) {
    EXPECT_EQ(code_of([bad] { (void)parse_token(bad); }), ErrorCode::kMalformedInput) << bad;
  }
}

}  // namespace
}  // namespace tributary::wire
