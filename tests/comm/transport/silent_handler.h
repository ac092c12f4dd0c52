// A handler that does not answer: answering answers would go on for ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "comm/transport/transport.h"

namespace tributary {

class SilentHandler : public TransportHandler {
 public:
  std::optional<Landing> on_message(PeerId /*peer*/, std::uint16_t /*type*/,
                                    std::span<const std::byte> /*header*/,
                                    std::size_t /*payload_bytes*/) override {
    return std::nullopt;
  }
  void on_disconnect(PeerId /*peer*/, const Status& /*reason*/) override {}
};

}  // namespace tributary
