#include "comm/local/local_transfer.h"

#include <algorithm>

namespace tributary {

Status copy_payload(Transfer& transfer, const Landing& landing) {
  const std::lock_guard lock(transfer.mutex);
  if (transfer.cancelled) return {ErrorCode::kUnavailable, "the sender has gone"};
  std::size_t bytes = 0;
  for (const auto& piece : landing.pieces) bytes += piece.size();
  if (bytes != transfer.message.payload_bytes()) {
    return {ErrorCode::kInternal, "the landing's size differs from the payload's"};
  }
  auto to = landing.pieces.begin();
  std::size_t filled = 0;  // of *to
  for (std::span<const std::byte> from : transfer.message.payload) {
    if (landing.inspect) landing.inspect(from);
    while (!from.empty()) {
      if (filled == to->size()) {
        ++to;
        filled = 0;
        continue;
      }
      const auto part = from.first(std::min(from.size(), to->size() - filled));
      std::ranges::copy(part, to->begin() + static_cast<std::ptrdiff_t>(filled));
      filled += part.size();
      from = from.subspan(part.size());
    }
  }
  return {};
}

}  // namespace tributary
