#include "comm/ucx/ucx_handshake.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "comm/wire/crc32c.h"
#include "core/base/error.h"

namespace tributary::ucx {
namespace {

constexpr std::string_view kMagic = "TRIBUCX1";
/// Version of what both sides must agree on before UCX is involved. The size of UCX's segments
/// (ucx_support.cc) is part of it: a larger segment than expected aborts the process that reads it.
constexpr std::uint16_t kVersion = 2;
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kLengthAt = 10;
constexpr std::size_t kChecksumAt = 12;
constexpr std::size_t kLabelAt = 16;
constexpr std::size_t kPrefixBytes = 24;

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.subspan(at, sizeof(value)).data(), sizeof(value));
  return value;
}

template <typename T>
void store(std::vector<std::byte>& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

/// The checksum of everything but itself.
std::uint32_t checksum(std::span<const std::byte> bytes) {
  return wire::crc32c(bytes.subspan(kLabelAt), wire::crc32c(bytes.first(kChecksumAt)));
}

std::vector<std::byte> encode_any(const Introduction& introduction) {
  const std::size_t length = introduction.address.size();
  std::vector<std::byte> bytes(kPrefixBytes + length);
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  store(bytes, kVersionAt, kVersion);
  store(bytes, kLengthAt, static_cast<std::uint16_t>(length));
  store(bytes, kLabelAt, introduction.label);
  std::ranges::copy(introduction.address, bytes.begin() + kPrefixBytes);
  store(bytes, kChecksumAt, checksum(bytes));
  return bytes;
}

}  // namespace

std::vector<std::byte> encode(const Introduction& introduction) {
  const std::size_t length = introduction.address.size();
  if (length == 0 || length > kMaxAddressBytes) {
    fail(ErrorCode::kUnsupported, "UCX: its worker's address has {} bytes, 1 to {} expected",
         length, kMaxAddressBytes);
  }
  return encode_any(introduction);
}

std::vector<std::byte> encode_refusal() {
  return encode_any({});
}

std::size_t introduction_bytes(std::span<const std::byte> begin) {
  const std::size_t known = std::min(begin.size(), kMagic.size());
  if (known > 0 && std::memcmp(begin.data(), kMagic.data(), known) != 0) {
    fail(ErrorCode::kMalformedInput, "not a transport of Tributary");
  }
  if (begin.size() < kPrefixBytes) return kPrefixBytes;
  if (const auto version = load<std::uint16_t>(begin, kVersionAt); version != kVersion) {
    fail(ErrorCode::kUnsupported, "it speaks version {}, this side version {}", version, kVersion);
  }
  const auto length = load<std::uint16_t>(begin, kLengthAt);
  if (length > kMaxAddressBytes) {
    fail(ErrorCode::kMalformedInput, "an address of {} bytes, 1 to {} expected", length,
         kMaxAddressBytes);
  }
  return kPrefixBytes + length;
}

Introduction decode(std::span<const std::byte> bytes) {
  if (const std::size_t expected = introduction_bytes(bytes); bytes.size() != expected) {
    fail(ErrorCode::kMalformedInput, "an introduction of {} bytes, {} expected", bytes.size(),
         expected);
  }
  if (load<std::uint32_t>(bytes, kChecksumAt) != checksum(bytes)) {
    fail(ErrorCode::kCorrupt, "the introduction does not match its checksum");
  }
  const auto address = bytes.subspan(kPrefixBytes);
  if (address.empty()) fail(ErrorCode::kPoolFull, "all its places are taken");
  return {.label = load<std::uint64_t>(bytes, kLabelAt),
          .address = {address.begin(), address.end()}};
}

}  // namespace tributary::ucx
