// Sends latent rows of a prompt from a client's memory to the workers that own their pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/base/deadline.h"
#include "deploy/service/client/tier_client.h"
#include "deploy/service/client/worker_connections.h"

namespace tributary {

/// See TierClient::push_rows.
void push_rows(WorkerConnections& connections, std::span<const PromptRows> parts,
               Deadline deadline);

/// Rows of one message: whole pages of about kPieceBytes.
[[nodiscard]] std::int64_t piece_rows(std::size_t row_bytes) noexcept;

/// A piece is so large that a message's header and reply (some 200 bytes, one round trip) vanish
/// beside it and that RDMA reaches its full rate on usual cards. It is so small that the data in
/// flight to a worker, and copied there, stays in the processor's cache (a quarter less work for
/// the worker than with 4 MiB).
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

/// How many messages of one call are in flight to a worker at once. They are enough for 40 GB/s
/// with answers after 100 us. They are so few that bytes read for their checksum are still in the
/// processor's cache when they are sent (a tenth more bandwidth over TCP than with all at once).
inline constexpr std::size_t kPiecesAhead = 4;

}  // namespace tributary
