#include "deploy/service/client/row_pieces.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/limits.h"
#include "deploy/service/client/worker_call.h"

namespace tributary {

std::int64_t piece_rows(std::size_t row_bytes) noexcept {
  const std::size_t page_bytes = row_bytes * kPageTokens;
  return static_cast<std::int64_t>(std::max<std::size_t>(1, kPieceBytes / page_bytes)) *
         kPageTokens;
}

void append_pieces(const SequenceHandle& sequence, std::size_t part, std::int64_t begin,
                   std::int64_t end, std::optional<int> others, std::vector<RowPiece>& pieces) {
  const std::int64_t rows = piece_rows(sequence.shape.row_bytes());
  std::int64_t next = begin;
  const auto add = [&](std::int64_t until, int rank) {
    while (next < until) {
      // Borders of pieces lie on multiples of `rows`, and so on borders of pages.
      const std::int64_t piece_end = std::min(until, (next / rows + 1) * rows);
      pieces.push_back({part, next, piece_end, &rank_address(sequence, rank)});
      next = piece_end;
    }
  };
  for (const Extent& extent : sequence.extents) {
    if (extent.begin <= next) add(std::min(extent.end, end), extent.rank);
  }
  if (next < end && !others) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: nobody owns position {} of rows {} to {}",
         sequence.id, next, begin, end);
  }
  if (next < end) add(end, *others);
}

std::int64_t count_rows(const SequenceHandle& sequence, int layer, std::size_t bytes) {
  const PoolShape& shape = sequence.shape;
  const std::size_t row_bytes = shape.row_bytes();
  if (layer < 0 || layer >= shape.layers) {
    fail(ErrorCode::kInvalidArgument, "layer {}: the pool has {}", layer, shape.layers);
  }
  if (row_bytes == 0 || bytes % row_bytes != 0) {
    fail(ErrorCode::kInvalidArgument, "{} bytes of rows: not a multiple of {}, the bytes of a row",
         bytes, row_bytes);
  }
  return static_cast<std::int64_t>(bytes / row_bytes);
}

}  // namespace tributary
