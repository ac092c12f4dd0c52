// The limits of TransportConfig, as every transport applies them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "comm/transport/transport.h"

namespace tributary {

/// The share of a message in max_outgoing_bytes: its bytes, and the state that is kept for it.
[[nodiscard]] std::size_t cost_of(const OutgoingMessage& message) noexcept;

/// kTooLarge for a message beyond max_header_bytes or max_payload_bytes, going out or coming in.
[[nodiscard]] Status check_size(const TransportConfig& config, std::uint16_t type,
                                std::size_t header_bytes, std::size_t payload_bytes);

/// kDeadlineExceeded if `cost` more would exceed max_outgoing_bytes: the peer does not read. One
/// message is always allowed, because its own size is bounded.
[[nodiscard]] Status check_room(const TransportConfig& config, std::string_view peer,
                                std::size_t waiting_bytes, std::size_t cost);

}  // namespace tributary
