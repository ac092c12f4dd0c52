// Messages from anybody: complete ones are read, everything else is refused as early as possible.
#include "comm/ucx/ucx_handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "tests/comm/transport/transport_endpoint.h"
#include "tests/core/base/expect_error.h"

namespace tributary::testing_support {
namespace {

using ucx::decode;
using ucx::encode;
using ucx::message_bytes;

constexpr std::size_t kHeaderBytes = 20;
constexpr std::size_t kContactBytes = 40;  // of an introduction, before the address
constexpr std::size_t kLengthAt = 12;

std::vector<std::byte> introduction(std::size_t address_bytes) {
  const ucx::Contact contact{.label = 0x0123456789abcdef, .address = test_bytes(address_bytes, 1)};
  return encode(ucx::Introduction{.contact = contact, .mac = {7}});
}

/// One of each kind.
std::vector<std::vector<std::byte>> messages() {
  return {encode(proof::Opening{.id = 5, .nonce = {1, 2, 3}}),
          encode(proof::Challenge{.nonce = {4, 5}}), introduction(77),
          encode(ucx::Refusal{.reason = ErrorCode::kPermissionDenied})};
}

}  // namespace

TEST(Handshake, WhatIsSaidIsUnderstood) {
  for (const std::vector<std::byte>& wire : messages()) {
    EXPECT_EQ(message_bytes(wire), wire.size());
    EXPECT_EQ(encode(decode(wire)), wire);
  }
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100}, ucx::kMaxAddressBytes}) {
    const ucx::Contact said{.label = ~std::uint64_t{bytes}, .address = test_bytes(bytes, 2)};
    const auto wire = encode(ucx::Introduction{.contact = said, .mac = {9, 8}});
    EXPECT_EQ(wire.size(), kHeaderBytes + kContactBytes + bytes);
    const auto understood = std::get<ucx::Introduction>(decode(wire));
    EXPECT_EQ(understood.contact.label, said.label);
    EXPECT_EQ(understood.contact.address, said.address);
    EXPECT_EQ(understood.mac, (wire::Mac{9, 8}));
  }
}

TEST(Handshake, LengthsHaveBounds) {
  for (const std::size_t bytes : {std::size_t{0}, ucx::kMaxAddressBytes + 1}) {
    EXPECT_EQ(code_of([&] { return introduction(bytes); }), ErrorCode::kUnsupported);
  }
  for (const std::vector<std::byte>& whole : messages()) {
    for (const std::uint32_t length : {0U, 3U, 33U, 41U + 8192U, ~0U}) {
      std::vector<std::byte> wire = whole;
      std::memcpy(wire.data() + kLengthAt, &length, sizeof(length));
      EXPECT_EQ(code_of([&] { return message_bytes(wire); }), ErrorCode::kMalformedInput) << length;
    }
  }
}

TEST(Handshake, ARefusalSaysWhyAndNothingElse) {
  for (const ErrorCode reason : {ErrorCode::kPoolFull, ErrorCode::kPermissionDenied}) {
    const auto wire = encode(ucx::Refusal{.reason = reason});
    EXPECT_EQ(std::get<ucx::Refusal>(decode(wire)).reason, reason);
  }
  for (const int reason : {-1, 0, 1, kErrorCodes, 1 << 20}) {
    const auto wire = encode(ucx::Refusal{.reason = static_cast<ErrorCode>(reason)});
    EXPECT_EQ(code_of([&] { return decode(wire); }), ErrorCode::kMalformedInput) << reason;
  }
}

TEST(Handshake, EveryBeginningAsksForMore) {
  for (const std::vector<std::byte>& whole : messages()) {
    for (std::size_t bytes = 0; bytes < whole.size(); ++bytes) {
      const auto begin = std::span(whole).first(bytes);
      EXPECT_EQ(message_bytes(begin), bytes < kHeaderBytes ? kHeaderBytes : whole.size());
      EXPECT_NE(code_of([&] { return decode(begin); }), ErrorCode::kOk) << bytes;
    }
    std::vector<std::byte> longer = whole;
    longer.push_back(std::byte{0});
    EXPECT_EQ(code_of([&] { return decode(longer); }), ErrorCode::kMalformedInput);
  }
}

TEST(Handshake, EveryDamagedBitIsNoticed) {
  for (const std::vector<std::byte>& whole : messages()) {
    for (std::size_t bit = 0; bit < whole.size() * 8; ++bit) {
      std::vector<std::byte> damaged = whole;
      damaged[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8);
      EXPECT_NE(code_of([&] { return decode(damaged); }), ErrorCode::kOk) << "bit " << bit;
    }
  }
}

TEST(Handshake, OthersAreRefusedByTheirFirstByte) {
  for (const std::string_view text :
       {"GET / HTTP/1.1\r\n", "\x16\x03\x01", "SSH-2.0-", "tribucx1"}) {
    for (std::size_t bytes = 1; bytes <= text.size(); ++bytes) {
      EXPECT_EQ(
          code_of([&] { return message_bytes(std::as_bytes(std::span(text.substr(0, bytes)))); }),
          ErrorCode::kMalformedInput);
    }
  }
}

TEST(Handshake, AnotherVersionIsNamed) {
  std::vector<std::byte> wire = introduction(10);
  wire[8] = std::byte{1};
  EXPECT_EQ(code_of([&] { return message_bytes(wire); }), ErrorCode::kUnsupported);
}

TEST(Handshake, RandomBytesAreRefused) {
  for (std::size_t seed = 0; seed < 20000; ++seed) {
    std::vector<std::byte> bytes = test_bytes(seed % 200 + 1, seed);
    // Half of them begin like a message.
    const std::vector<std::byte> well = introduction(1);
    if (seed % 2 == 0) {
      std::memcpy(bytes.data(), well.data(), std::min<std::size_t>(bytes.size(), 12));
    }
    EXPECT_NE(code_of([&] { return decode(bytes); }), ErrorCode::kOk);
  }
}

}  // namespace tributary::testing_support
