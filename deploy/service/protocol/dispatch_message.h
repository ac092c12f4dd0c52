// Turns a message's tag and bytes into a call with the message.
#pragma once

#include <cstddef>
#include <span>

#include "comm/wire/codec.h"
#include "deploy/service/protocol/message_type.h"

namespace tributary::wire {

/// Decodes the one of `Messages` that `type` names, and passes it to `receive`; returns false if it
/// names none of them. Throws kMalformedInput, and the exceptions of `receive`.
template <Message... Messages, typename Receive>
[[nodiscard]] bool dispatch(MessageType type, std::span<const std::byte> header, Receive receive) {
  return ((type == Messages::kType && (receive(decode<Messages>(header)), true)) || ...);
}

}  // namespace tributary::wire
