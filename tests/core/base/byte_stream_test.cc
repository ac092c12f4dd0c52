#include "core/base/byte_stream.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/core/base/expect_error.h"

namespace tributary {
namespace {

struct Pair {
  std::int64_t first = 0;
  std::int32_t second = 0;
  std::int32_t third = 0;
  friend bool operator==(const Pair&, const Pair&) = default;
};

TEST(ByteStream, ReadsWhatWasWritten) {
  const std::vector<Pair> pairs{{-1, 2, 3}, {INT64_MAX, INT32_MIN, 0}};
  const std::vector<std::int32_t> none;
  ByteWriter out;
  out.value(std::uint8_t{200});
  out.list(std::span<const Pair>(pairs));
  out.list(std::span<const std::int32_t>(none));
  out.value(-2.5);
  const auto bytes = out.take();
  EXPECT_EQ(bytes.size(), 1 + (4 + 2 * sizeof(Pair)) + 4 + sizeof(double));

  ByteReader in(bytes);
  EXPECT_FALSE(in.empty());
  EXPECT_EQ(in.value<std::uint8_t>(), 200);
  EXPECT_EQ(in.list<Pair>(), pairs);
  EXPECT_EQ(in.list<std::int32_t>(), none);
  EXPECT_EQ(in.value<double>(), -2.5);
  EXPECT_TRUE(in.empty());
}

TEST(ByteStream, IsLittleEndianWithoutPadding) {
  ByteWriter out;
  out.value(std::uint16_t{0x0102});
  out.value(std::uint32_t{0x03040506});
  const std::vector<std::byte> expected{std::byte{2}, std::byte{1}, std::byte{6},
                                        std::byte{5}, std::byte{4}, std::byte{3}};
  EXPECT_EQ(out.take(), expected);
}

TEST(ByteStream, RefusesToReadBeyondTheEnd) {
  ByteWriter out;
  out.value(std::uint32_t{7});
  const auto bytes = out.take();
  ByteReader in(bytes);
  EXPECT_EQ(message_of([&] { (void)in.value<std::uint64_t>(); }),
            "message: 8 bytes wanted, 4 left");
  EXPECT_EQ(in.value<std::uint32_t>(), 7U) << "the refused read took nothing";
  EXPECT_EQ(code_of([&] { (void)in.value<std::uint8_t>(); }), ErrorCode::kMalformedInput);
  ByteReader nothing({});
  EXPECT_TRUE(nothing.empty());
  EXPECT_EQ(code_of([&] { (void)nothing.list<char>(); }), ErrorCode::kMalformedInput);
}

TEST(ByteStream, ACountIsHeldAgainstTheBytesBeforeMemoryIsTaken) {
  ByteWriter out;
  out.value(std::uint32_t{0xffffffff});
  out.value(std::uint64_t{0});
  const auto bytes = out.take();
  ByteReader in(bytes);
  EXPECT_EQ(code_of([&] { (void)in.list<Pair>(); }), ErrorCode::kMalformedInput);
}

}  // namespace
}  // namespace tributary
