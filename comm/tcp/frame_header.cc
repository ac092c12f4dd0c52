#include "comm/tcp/frame_header.h"

#include "comm/wire/codec.h"

namespace tributary::tcp {

std::vector<std::byte> encode(const FrameHeader& header) {
  return wire::encode(header);
}

FrameHeader decode(std::span<const std::byte> bytes) {
  const auto header = wire::decode<FrameHeader>(bytes);
  if (header.mark != FrameHeader::kMark) {
    fail(ErrorCode::kMalformedInput, "a frame without its mark");
  }
  return header;
}

}  // namespace tributary::tcp
