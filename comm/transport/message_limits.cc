#include "comm/transport/message_limits.h"

namespace tributary {
namespace {

constexpr std::size_t kMessageCost = 128;

}  // namespace

std::size_t cost_of(const OutgoingMessage& message) noexcept {
  return kMessageCost + message.header.size() + message.payload_bytes();
}

Status check_size(const TransportConfig& config, std::uint16_t type, std::size_t header_bytes,
                  std::size_t payload_bytes) {
  if (header_bytes <= config.max_header_bytes && payload_bytes <= config.max_payload_bytes) {
    return {};
  }
  return {
      ErrorCode::kTooLarge,
      fmt::format("message {}: header of {} bytes (at most {}), payload of {} (at most {})", type,
                  header_bytes, config.max_header_bytes, payload_bytes, config.max_payload_bytes)};
}

Status check_room(const TransportConfig& config, std::string_view peer, std::size_t waiting_bytes,
                  std::size_t cost) {
  if (waiting_bytes == 0 || waiting_bytes + cost <= config.max_outgoing_bytes) return {};
  return {ErrorCode::kDeadlineExceeded,
          fmt::format("connection to {}: it does not read: {} bytes wait, at most {}", peer,
                      waiting_bytes, config.max_outgoing_bytes)};
}

}  // namespace tributary
