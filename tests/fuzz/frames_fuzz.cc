// Any bytes from a proven peer. They are refused with a typed error, or give messages that are the
// same however the bytes are cut into parts. The first byte says how they are cut; marks are
// corrected, so that the search gets past them.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "comm/tcp/frame_reader.h"
#include "core/base/error.h"

namespace {

using tributary::ErrorCode;
using tributary::Landing;

/// The messages and landed payloads of a reader, as bytes.
std::vector<std::byte> read_all(std::span<const std::byte> bytes, std::size_t part, bool& refused) {
  const tributary::TransportConfig config{.max_header_bytes = 64, .max_payload_bytes = 100'000};
  std::vector<std::byte> all;
  std::vector<std::byte> memory(config.max_payload_bytes);
  tributary::tcp::FrameReader reader(config,
                                     [&](std::uint16_t type, std::span<const std::byte> header,
                                         std::size_t payload) -> std::optional<Landing> {
                                       all.push_back(static_cast<std::byte>(type));
                                       all.insert(all.end(), header.begin(), header.end());
                                       if (payload % 3 == 1) return std::nullopt;
                                       const std::span<std::byte> to(memory.data(), payload);
                                       const std::size_t half = payload / 2;
                                       return Landing{
                                           .pieces = {to.first(half), to.subspan(half)},
                                           .done = [&all, to](const tributary::Status& status) {
                                             if (status.ok())
                                               all.insert(all.end(), to.begin(), to.end());
                                           }};
                                     });
  refused = false;
  try {
    while (!bytes.empty()) {
      const std::size_t now = boost::asio::buffer_copy(
          reader.space(), boost::asio::buffer(bytes.data(), std::min(part, bytes.size())));
      if (now == 0) std::abort();
      reader.filled(now);
      bytes = bytes.subspan(now);
    }
  } catch (const tributary::Error& error) {
    refused = true;
    if (error.code() != ErrorCode::kMalformedInput && error.code() != ErrorCode::kTooLarge) {
      std::abort();
    }
  }
  reader.stop({ErrorCode::kUnavailable, "the end"});
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kMarkAt = 14;  // of a frame's 16 bytes
  constexpr std::uint16_t kMark = 0x7B1F;
  if (size == 0) return 0;
  std::vector<std::byte> bytes(size - 1);
  if (size > 1) std::memcpy(bytes.data(), data + 1, size - 1);
  if (data[0] % 2 == 1 && bytes.size() >= kMarkAt + 2) {
    std::memcpy(bytes.data() + kMarkAt, &kMark, sizeof(kMark));
  }
  bool refused = false;
  bool refused_in_parts = false;
  const auto whole = read_all(bytes, bytes.size(), refused);
  const auto parts = read_all(bytes, std::size_t{1} + data[0], refused_in_parts);
  if (whole != parts || refused != refused_in_parts) std::abort();
  return 0;
}
