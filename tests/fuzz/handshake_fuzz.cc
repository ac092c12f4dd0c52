// Any bytes at a worker's front door. They are refused with a typed error, or give a message
// that is written as it was read. The checksum is corrected, so that the search gets past it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "comm/ucx/ucx_handshake.h"
#include "comm/wire/crc32c.h"
#include "core/base/error.h"

namespace {

using tributary::ErrorCode;

void check(std::span<const std::byte> bytes) {
  try {
    const auto again = tributary::ucx::encode(tributary::ucx::decode(bytes));
    if (!std::ranges::equal(bytes, again)) std::abort();
  } catch (const tributary::Error& error) {
    const ErrorCode code = error.code();
    if (code != ErrorCode::kMalformedInput && code != ErrorCode::kUnsupported &&
        code != ErrorCode::kCorrupt) {
      std::abort();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kChecksum = 16;  // its position, see ucx_handshake.h
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  check(bytes);
  if (size > kChecksum + 4) {
    const std::span all(bytes);
    const std::uint32_t crc = tributary::wire::crc32c(
        all.subspan(kChecksum + 4), tributary::wire::crc32c(all.first(kChecksum)));
    std::memcpy(bytes.data() + kChecksum, &crc, sizeof(crc));
    check(bytes);
  }
  return 0;
}
