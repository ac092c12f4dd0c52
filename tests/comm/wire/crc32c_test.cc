// Checksums against the vectors of RFC 3720, appendix B.4.
#include "comm/wire/crc32c.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <vector>

namespace tributary::wire {
namespace {

TEST(Crc32cTest, HasTheValuesOfTheStandard) {
  std::vector<std::uint8_t> bytes(32, 0);
  const auto value = [&bytes] { return crc32c(std::as_bytes(std::span(bytes))); };
  EXPECT_EQ(value(), 0x8a9136aaU);
  std::ranges::fill(bytes, 0xff);
  EXPECT_EQ(value(), 0x62a8ab43U);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  EXPECT_EQ(value(), 0x46dd794eU);
  std::ranges::reverse(bytes);
  EXPECT_EQ(value(), 0x113fdb5cU);
  constexpr std::string_view kDigits = "123456789";
  EXPECT_EQ(crc32c(std::as_bytes(std::span(kDigits))), 0xe3069283U);
  EXPECT_EQ(crc32c({}), 0U);
}

TEST(Crc32cTest, IsTheSameInPieces) {
  std::vector<std::uint8_t> bytes(1001);
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{7});
  const auto all = std::as_bytes(std::span(bytes));
  for (const std::size_t cut : {std::size_t{0}, std::size_t{1}, std::size_t{500}, all.size()}) {
    EXPECT_EQ(crc32c(all.subspan(cut), crc32c(all.first(cut))), crc32c(all)) << cut;
  }
}

}  // namespace
}  // namespace tributary::wire
