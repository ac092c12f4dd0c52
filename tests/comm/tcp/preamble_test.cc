#include "comm/tcp/preamble.h"

#include <gtest/gtest.h>

#include "comm/wire/codec.h"

namespace tributary::tcp {

TEST(Preamble, HasItsSize) {
  EXPECT_EQ(wire::encode(Preamble{}).size(), Preamble::kBytes);
}

TEST(Preamble, OthersAreToldFromOtherVersions) {
  EXPECT_TRUE(check_preamble({}).ok());
  EXPECT_EQ(check_preamble({.magic = Preamble::kMagic + 1}).code(), ErrorCode::kMalformedInput);
  EXPECT_EQ(check_preamble({.version = Preamble::kVersion + 1}).code(), ErrorCode::kUnsupported);
}

}  // namespace tributary::tcp
