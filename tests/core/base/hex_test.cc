#include "core/base/hex.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

TEST(Hex, BytesComeBackAsTheyWere) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(parse_hex(hex_text(bytes), "it"), bytes);
  EXPECT_EQ(hex_text(std::string("\0\xff\x1a", 3)), "00ff1a");
  EXPECT_EQ(parse_hex("", "it"), "");
}

TEST(Hex, OtherTextIsRefusedAndNotShown) {
  for (const char* text : {"0", "0g", "AA", " 00", "0x"}) {
    const Status status = status_of([&] { (void)parse_hex(text, "salt"); });
    EXPECT_EQ(status.code(), ErrorCode::kMalformedInput) << text;
    EXPECT_EQ(status.message().find(text),
              text == std::string("0") ? status.message().find('0') : std::string::npos);
    EXPECT_TRUE(status.message().starts_with("salt: "));
  }
}

}  // namespace
}  // namespace tributary
