// Introductions from anybody: complete ones are read, everything else is refused as early as
// possible.
#include "comm/ucx/ucx_handshake.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string_view>

#include "core/base/error.h"
#include "tests/comm/transport/transport_endpoint.h"

namespace tributary::testing_support {
namespace {

using ucx::decode;
using ucx::encode;
using ucx::introduction_bytes;

constexpr std::size_t kPrefixBytes = 24;

template <typename Work>
ErrorCode code_of(const Work& work) {
  try {
    static_cast<void>(work());
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::kOk;
}

std::vector<std::byte> introduction(std::size_t address_bytes) {
  return encode({.label = 0x0123456789abcdef, .address = test_bytes(address_bytes, 1)});
}

}  // namespace

TEST(Handshake, WhatIsSaidIsUnderstood) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, ucx::kMaxAddressBytes}) {
    const ucx::Introduction said{.label = ~std::uint64_t{bytes}, .address = test_bytes(bytes, 2)};
    const std::vector<std::byte> wire = encode(said);
    EXPECT_EQ(wire.size(), kPrefixBytes + bytes);
    EXPECT_EQ(introduction_bytes(wire), wire.size());
    const ucx::Introduction understood = decode(wire);
    EXPECT_EQ(understood.label, said.label);
    EXPECT_EQ(understood.address, said.address);
  }
}

TEST(Handshake, AddressesHaveALimit) {
  EXPECT_EQ(code_of([] { return introduction(0); }), ErrorCode::kUnsupported);
  for (const std::size_t bytes : {ucx::kMaxAddressBytes + 1, std::size_t{0xffff}}) {
    EXPECT_EQ(code_of([&] { return introduction(bytes); }), ErrorCode::kUnsupported);
    std::vector<std::byte> wire = introduction(10);
    const auto length = static_cast<std::uint16_t>(bytes);
    std::memcpy(wire.data() + 10, &length, sizeof(length));
    EXPECT_EQ(code_of([&] { return introduction_bytes(wire); }), ErrorCode::kMalformedInput);
  }
}

TEST(Handshake, ARefusalIsNoIntroduction) {
  std::vector<std::byte> wire = ucx::encode_refusal();
  EXPECT_EQ(introduction_bytes(wire), wire.size());
  EXPECT_EQ(code_of([&] { return decode(wire); }), ErrorCode::kPoolFull);
  wire.back() ^= std::byte{1};
  EXPECT_EQ(code_of([&] { return decode(wire); }), ErrorCode::kCorrupt);
}

TEST(Handshake, EveryBeginningAsksForMore) {
  const std::vector<std::byte> whole = introduction(77);
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
    const auto begin = std::span(whole).first(bytes);
    EXPECT_EQ(introduction_bytes(begin), bytes < kPrefixBytes ? kPrefixBytes : whole.size());
    EXPECT_NE(code_of([&] { return decode(begin); }), ErrorCode::kOk) << bytes;
  }
  std::vector<std::byte> longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_EQ(code_of([&] { return decode(longer); }), ErrorCode::kMalformedInput);
}

TEST(Handshake, EveryDamagedBitIsNoticed) {
  const std::vector<std::byte> whole = introduction(77);
  for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::vector<std::byte> damaged = whole;
    damaged[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
    EXPECT_NE(code_of([&] { return decode(damaged); }), ErrorCode::kOk) << "bit " << bit;
  }
}

TEST(Handshake, OthersAreRefusedByTheirFirstByte) {
  for (const std::string_view text :
       {"GET / HTTP/1.1\r\n", "\x16\x03\x01", "SSH-2.0-", "tribucx1"}) {
    for (std::size_t bytes = 1; bytes <= text.size(); ++bytes) {
      EXPECT_EQ(code_of([&] {
                  return introduction_bytes(std::as_bytes(std::span(text.substr(0, bytes))));
                }),
                ErrorCode::kMalformedInput);
    }
  }
}

TEST(Handshake, AnotherVersionIsNamed) {
  std::vector<std::byte> wire = introduction(10);
  wire[8] = std::byte{1};
  EXPECT_EQ(code_of([&] { return introduction_bytes(wire); }), ErrorCode::kUnsupported);
}

TEST(Handshake, RandomBytesAreRefused) {
  for (std::size_t seed = 0; seed < 20000; ++seed) {
    std::vector<std::byte> bytes = test_bytes(seed % 200 + 1, seed);
    // Half of them begin like an introduction.
    const std::vector<std::byte> well = introduction(1);
    if (seed % 2 == 0)
      std::memcpy(bytes.data(), well.data(), std::min<std::size_t>(bytes.size(), 8));
    EXPECT_NE(code_of([&] { return decode(bytes); }), ErrorCode::kOk);
  }
}

}  // namespace tributary::testing_support
