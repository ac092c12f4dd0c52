// Escaping of outside text in messages.
#include "core/base/quote.h"

#include <gtest/gtest.h>

namespace tributary {
namespace {

TEST(Quote, KeepsPrintableAsciiAndEscapesTheRest) {
  EXPECT_EQ(quote("a b.c"), "'a b.c'");
  EXPECT_EQ(quote(""), "''");
  EXPECT_EQ(quote(std::string_view("\n\x1b\0\xc3\xa9", 5)), "'\\x0a\\x1b\\x00\\xc3\\xa9'");
}

TEST(Quote, CutsLongTextAndSaysHowLongItWas) {
  EXPECT_EQ(quote("12345", 5), "'12345'");
  EXPECT_EQ(quote("123456", 5), "'12345'... (6 bytes)");
}

}  // namespace
}  // namespace tributary
