// Cuts a range of a sequence's rows into messages to the workers that hold them. Used only inside
// deploy/service/client.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deploy/service/protocol/admission.h"

namespace tributary {

/// A piece is so large that a message's header and reply (some 200 bytes, one round trip) vanish
/// beside it and that RDMA reaches its full rate on usual cards. It is so small that the data in
/// flight to a worker, and copied there, stays in the processor's cache (a quarter less work for
/// the worker than with 4 MiB).
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

/// How many messages of one call are in flight to a worker at once. They are enough for 40 GB/s
/// with answers after 100 us. They are so few that bytes read for their checksum are still in the
/// processor's cache when they are sent (a tenth more bandwidth over TCP than with all at once).
inline constexpr std::size_t kPiecesAhead = 4;

/// Rows begin .. end - 1 of a part, on one worker.
struct RowPiece {
  std::size_t part = 0;  // its index in the call
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const std::string* address = nullptr;  // of the sequence's handle
};

/// Rows of one message: whole pages of about kPieceBytes.
[[nodiscard]] std::int64_t piece_rows(std::size_t row_bytes) noexcept;

/// Appends the pieces of rows begin .. end - 1. Those that no extent has are asked of worker
/// `others`; throws kInvalidArgument where there is none.
void append_pieces(const SequenceHandle& sequence, std::size_t part, std::int64_t begin,
                   std::int64_t end, std::optional<int> others, std::vector<RowPiece>& pieces);

/// The checked layer and whole rows of `bytes` bytes: returns their number. Throws
/// kInvalidArgument.
[[nodiscard]] std::int64_t count_rows(const SequenceHandle& sequence, int layer, std::size_t bytes);

}  // namespace tributary
