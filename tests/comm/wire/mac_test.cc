// The MAC, by the test cases of RFC 4231, and comparison.
#include "comm/wire/mac.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace tributary::wire {
namespace {

std::vector<std::uint8_t> bytes_of(std::string_view text) {
  return {text.begin(), text.end()};
}

std::string hex(const Mac& mac) {
  std::string text;
  for (const std::uint8_t byte : mac) {
    text += "0123456789abcdef"[byte / 16];
    text += "0123456789abcdef"[byte % 16];
  }
  return text;
}

}  // namespace

TEST(Mac, IsHmacSha256) {
  EXPECT_EQ(hex(mac(std::vector<std::uint8_t>(20, 0x0b), bytes_of("Hi There"))),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex(mac(bytes_of("Jefe"), bytes_of("what do ya want for nothing?"))),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Mac, BytesAreTheSameOrNot) {
  EXPECT_TRUE(same_bytes(bytes_of("abc"), bytes_of("abc")));
  EXPECT_FALSE(same_bytes(bytes_of("abc"), bytes_of("abd")));
  EXPECT_FALSE(same_bytes(bytes_of("abc"), bytes_of("ab")));
}

TEST(Mac, RandomBytesDiffer) {
  Mac a{};
  Mac b{};
  fill_random(a);
  fill_random(b);
  EXPECT_NE(a, b);
}

}  // namespace tributary::wire
