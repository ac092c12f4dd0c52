#include "comm/wire/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace tributary::wire {

std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t crc) {
  // ISA-L's function takes an int as length, only reads the bytes, and omits both inversions.
  constexpr std::size_t kPiece = std::size_t{1} << 30;
  std::uint32_t state = ~crc;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), kPiece));
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(piece.data()));
    state = crc32_iscsi(data, static_cast<int>(piece.size()), state);
    bytes = bytes.subspan(piece.size());
  }
  return ~state;
}

}  // namespace tributary::wire
