#include "comm/ucx/ucx_handshake.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "comm/wire/codec.h"
#include "comm/wire/crc32c.h"

namespace tributary::ucx {
namespace {

constexpr std::string_view kMagic = "TRIBUCX1";
/// Version of what both sides must agree on before UCX is involved. The size of UCX's segments
/// (ucx_support.cc) is part of it: a larger segment than expected aborts the process that reads it.
constexpr std::uint16_t kVersion = 4;
constexpr std::size_t kVersionAt = 8;
constexpr std::size_t kKindAt = 10;
constexpr std::size_t kLengthAt = 12;
constexpr std::size_t kChecksumAt = 16;
constexpr std::size_t kBodyAt = 20;

constexpr std::size_t kContactBytes = sizeof(wire::Mac) + sizeof(Contact::label);

/// The bodies that can follow the header, by the index in Message.
struct Body {
  std::string_view name;
  std::size_t min_bytes;
  std::size_t max_bytes;
};
constexpr std::array<Body, std::variant_size_v<Message>> kBodies{
    Body{"opening", proof::Opening::kBytes, proof::Opening::kBytes},
    Body{"challenge", proof::Challenge::kBytes, proof::Challenge::kBytes},
    Body{"introduction", kContactBytes + 1, kContactBytes + kMaxAddressBytes},
    Body{"refusal", sizeof(ErrorCode), sizeof(ErrorCode)}};

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.subspan(at, sizeof(value)).data(), sizeof(value));
  return value;
}

template <typename T>
void store(std::vector<std::byte>& bytes, std::size_t at, const T& value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
}

/// The checksum of everything but itself.
std::uint32_t checksum(std::span<const std::byte> bytes) {
  return wire::crc32c(bytes.subspan(kBodyAt), wire::crc32c(bytes.first(kChecksumAt)));
}

std::vector<std::byte> body_of(const proof::Opening& opening) {
  return wire::encode(opening);
}
std::vector<std::byte> body_of(const proof::Challenge& challenge) {
  return wire::encode(challenge);
}
std::vector<std::byte> body_of(const Introduction& introduction) {
  const Contact& contact = introduction.contact;
  if (contact.address.empty() || contact.address.size() > kMaxAddressBytes) {
    fail(ErrorCode::kUnsupported, "UCX: its worker's address has {} bytes, 1 to {} expected",
         contact.address.size(), kMaxAddressBytes);
  }
  std::vector<std::byte> body(kContactBytes + contact.address.size());
  store(body, 0, introduction.mac);
  store(body, sizeof(wire::Mac), contact.label);
  std::ranges::copy(contact.address, body.begin() + kContactBytes);
  return body;
}
std::vector<std::byte> body_of(const Refusal& refusal) {
  std::vector<std::byte> body(sizeof(refusal.reason));
  store(body, 0, refusal.reason);
  return body;
}

Message message_of(std::size_t kind, std::span<const std::byte> body) {
  switch (kind) {
    case 0:
      return wire::decode<proof::Opening>(body);
    case 1:
      return wire::decode<proof::Challenge>(body);
    case 2: {
      const auto address = body.subspan(kContactBytes);
      return Introduction{.contact = {.label = load<std::uint64_t>(body, sizeof(wire::Mac)),
                                      .address = {address.begin(), address.end()}},
                          .mac = load<wire::Mac>(body, 0)};
    }
    default:
      break;
  }
  const auto reason = load<std::underlying_type_t<ErrorCode>>(body, 0);
  for (const ErrorCode known : {ErrorCode::kPoolFull, ErrorCode::kPermissionDenied}) {
    if (reason == static_cast<std::underlying_type_t<ErrorCode>>(known)) {
      return Refusal{.reason = known};
    }
  }
  fail(ErrorCode::kMalformedInput, "a refusal for the reason {}", reason);
}

/// The bytes that a side vouches for with its proof.
std::vector<std::byte> vouched(const Contact& contact) {
  return encode(Introduction{.contact = contact, .mac = {}});
}

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  const std::vector<std::byte> body =
      std::visit([](const auto& kind) { return body_of(kind); }, message);
  std::vector<std::byte> bytes(kBodyAt + body.size());
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  store(bytes, kVersionAt, kVersion);
  store(bytes, kKindAt, static_cast<std::uint16_t>(message.index()));
  store(bytes, kLengthAt, static_cast<std::uint32_t>(body.size()));
  std::ranges::copy(body, bytes.begin() + kBodyAt);
  store(bytes, kChecksumAt, checksum(bytes));
  return bytes;
}

std::size_t message_bytes(std::span<const std::byte> begin) {
  const std::size_t known = std::min(begin.size(), kMagic.size());
  if (known > 0 && std::memcmp(begin.data(), kMagic.data(), known) != 0) {
    fail(ErrorCode::kMalformedInput, "not a transport of Tributary");
  }
  if (begin.size() < kBodyAt) return kBodyAt;
  if (const auto version = load<std::uint16_t>(begin, kVersionAt); version != kVersion) {
    fail(ErrorCode::kUnsupported, "it speaks version {}, this side version {}", version, kVersion);
  }
  const auto kind = load<std::uint16_t>(begin, kKindAt);
  if (kind >= kBodies.size()) {
    fail(ErrorCode::kMalformedInput, "a message of the kind {}, 0 to {} expected", kind,
         kBodies.size() - 1);
  }
  const Body& body = kBodies.at(kind);
  const auto length = load<std::uint32_t>(begin, kLengthAt);
  if (length < body.min_bytes || length > body.max_bytes) {
    fail(ErrorCode::kMalformedInput, "the {} has {} bytes, {} to {} expected", body.name, length,
         body.min_bytes, body.max_bytes);
  }
  return kBodyAt + length;
}

Message decode(std::span<const std::byte> bytes) {
  if (const std::size_t expected = message_bytes(bytes); bytes.size() != expected) {
    fail(ErrorCode::kMalformedInput, "a message of {} bytes, {} expected", bytes.size(), expected);
  }
  if (load<std::uint32_t>(bytes, kChecksumAt) != checksum(bytes)) {
    fail(ErrorCode::kCorrupt, "the introduction does not match its checksum");
  }
  return message_of(load<std::uint16_t>(bytes, kKindAt), bytes.subspan(kBodyAt));
}

wire::Mac client_mac(const Secret& secret, const proof::Transcript& said, const Contact& contact) {
  return proof::client_proof(secret, said, vouched(contact)).mac;
}

wire::Mac server_mac(const Secret& secret, const proof::Transcript& said, const Contact& contact) {
  return proof::server_verdict(secret, said, ErrorCode::kOk, vouched(contact)).mac;
}

}  // namespace tributary::ucx
