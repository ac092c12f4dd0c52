// The header in front of every message on a connection: 16 bytes, then the message's header, then
// its payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tributary::tcp {

struct FrameHeader {
  std::uint64_t payload_bytes = 0;
  std::uint32_t header_bytes = 0;
  std::uint16_t type = 0;
  /// The same in every frame, so that a peer that has lost its place in the stream is noticed.
  std::uint16_t mark = kMark;

  static constexpr std::uint16_t kMark = 0x7B1F;
  static constexpr std::size_t kBytes = 16;
  static void fields(auto& archive, auto& m) {
    archive(m.payload_bytes, m.header_bytes, m.type, m.mark);
  }
};

[[nodiscard]] std::vector<std::byte> encode(const FrameHeader& header);
/// Decodes exactly kBytes. Throws kMalformedInput if the mark is missing. The caller checks the
/// lengths.
[[nodiscard]] FrameHeader decode(std::span<const std::byte> bytes);

}  // namespace tributary::tcp
