// A worker's answers by their types, and what ends a request without one. Used only inside
// deploy/service/client.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <variant>

#include "comm/wire/codec.h"
#include "core/base/error.h"
#include "deploy/service/client/worker_request.h"

namespace tributary {

[[nodiscard]] inline wire::MessageType reply_type(wire::MessageType request) {
  switch (request) {
    case wire::MessageType::kRows:
      return wire::MessageType::kRowsReply;
    case wire::MessageType::kPull:
      return wire::MessageType::kPullReply;
    case wire::MessageType::kLayerRequest:
      return wire::MessageType::kLayerReply;
    default:
      return wire::MessageType::kControlReply;
  }
}

/// The number of the request.
[[nodiscard]] inline std::uint64_t request_of(const WorkerReply& reply) {
  return std::visit(
      [](const auto& message) -> std::uint64_t {
        if constexpr (requires { message.request; }) {
          return message.request;
        } else {
          return 0;
        }
      },
      reply);
}

[[nodiscard]] inline WorkerReply decode_reply(wire::MessageType type,
                                              std::span<const std::byte> header) {
  switch (type) {
    case wire::MessageType::kRowsReply:
      return wire::decode<wire::RowsReply>(header);
    case wire::MessageType::kPullReply:
      return wire::decode<wire::PullReply>(header);
    case wire::MessageType::kLayerReply:
      return wire::decode<wire::LayerReply>(header);
    case wire::MessageType::kControlReply:
      return wire::decode<wire::ControlReply>(header);
    default:
      fail(ErrorCode::kMalformedInput, "message of type {}", static_cast<int>(type));
  }
}

/// Of a reply's payload; 0 where its type has none.
[[nodiscard]] inline std::uint32_t checksum_of(const WorkerReply& reply) {
  return std::visit(
      [](const auto& message) -> std::uint32_t {
        if constexpr (requires { message.crc32c; }) {
          return message.crc32c;
        } else {
          return 0;
        }
      },
      reply);
}

/// It has ended with an error, or with a refusal of its rows.
[[nodiscard]] inline bool has_failed(const WorkerRequest& request) {
  const auto* rows = std::get_if<wire::RowsReply>(&request.reply);
  const auto* pull = std::get_if<wire::PullReply>(&request.reply);
  return !request.status.ok() || (rows != nullptr && !rows->outcome.ok()) ||
         (pull != nullptr && !pull->outcome.ok());
}

/// The status of a request that must not be sent: its token is not the proven one.
[[nodiscard]] inline Status wrong_token(const std::string& address, std::uint64_t sequence_id) {
  return {ErrorCode::kPermissionDenied,
          fmt::format("worker {}: sequence {} has another token than this handle", address,
                      sequence_id)};
}

}  // namespace tributary
