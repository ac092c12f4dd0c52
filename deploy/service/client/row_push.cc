#include "deploy/service/client/row_push.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/wire/crc32c.h"
#include "core/base/dtype.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "deploy/service/client/worker_call.h"

namespace tributary {
namespace {

/// Rows begin .. end - 1 of a part, on one worker.
struct Piece {
  std::size_t part = 0;  // its index
  std::int64_t begin = 0;
  std::int64_t end = 0;
  const std::string* address = nullptr;
  std::size_t turn = 0;  // among its worker's
};

void split(const SequenceHandle& sequence, std::size_t part, std::int64_t begin, std::int64_t end,
           std::vector<Piece>& pieces) {
  const std::int64_t rows = piece_rows(sequence.shape.row_bytes());
  std::int64_t next = begin;
  for (const Extent& extent : sequence.extents) {
    if (extent.end <= next || extent.begin > next) continue;
    const std::int64_t extent_end = std::min(extent.end, end);
    while (next < extent_end) {
      // Borders of pieces lie on multiples of `rows`, and so on borders of pages.
      const std::int64_t piece_end = std::min(extent_end, (next / rows + 1) * rows);
      pieces.push_back({part, next, piece_end, &rank_address(sequence, extent.rank)});
      next = piece_end;
    }
  }
  if (next < end) {
    fail(ErrorCode::kInvalidArgument, "sequence {}: nobody owns position {} of rows {} to {}",
         sequence.id, next, begin, end);
  }
}

/// Sends the first piece of every worker, then the second: no worker waits until another has got
/// all.
void take_turns(std::vector<Piece>& pieces) {
  std::map<std::string_view, std::size_t> count;
  for (Piece& piece : pieces) piece.turn = count[*piece.address]++;
  std::ranges::stable_sort(pieces, {}, &Piece::turn);
}

std::int64_t check(const SequenceHandle& sequence, int layer, std::int64_t begin, std::size_t bytes,
                   std::size_t row_bytes) {
  const PoolShape& shape = sequence.shape;
  if (layer < 0 || layer >= shape.layers) {
    fail(ErrorCode::kInvalidArgument, "layer {}: the pool has {}", layer, shape.layers);
  }
  if (row_bytes == 0 || bytes % row_bytes != 0) {
    fail(ErrorCode::kInvalidArgument, "{} bytes of rows: not a multiple of {}, the bytes of a row",
         bytes, row_bytes);
  }
  const auto count = static_cast<std::int64_t>(bytes / row_bytes);
  if (begin < 0 || begin > sequence.prompt_tokens - count) {
    fail(ErrorCode::kInvalidArgument, "rows {} to {}: the prompt of sequence {} has {}", begin,
         begin + count, sequence.id, sequence.prompt_tokens);
  }
  return count;
}

Status outcome(WorkerCall& call, std::size_t index) {
  Status status = call.wait(index);
  if (!status.ok()) return status;
  const auto* reply = std::get_if<wire::RowsReply>(&call.reply(index));
  if (reply == nullptr) return {ErrorCode::kInternal, "rows without an outcome"};
  return {reply->outcome.code, reply->outcome.message};
}

}  // namespace

std::int64_t piece_rows(std::size_t row_bytes) noexcept {
  const std::size_t page_bytes = row_bytes * kPageTokens;
  return static_cast<std::int64_t>(std::max<std::size_t>(1, kPieceBytes / page_bytes)) *
         kPageTokens;
}

void push_rows(WorkerConnections& connections, std::span<const PromptRows> parts,
               Deadline deadline) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const PromptRows& part = parts[i];
    const std::int64_t count = check(*part.sequence, part.layer, part.begin, part.rows.size(),
                                     part.sequence->shape.row_bytes());
    split(*part.sequence, i, part.begin, part.begin + count, pieces);
  }
  take_turns(pieces);

  WorkerCall call(connections, deadline);
  struct Sent {
    std::size_t part = 0;
    std::size_t index = 0;  // in the call
  };
  std::vector<Sent> sent;
  std::vector<Status> late(parts.size());
  std::map<std::string_view, std::vector<std::size_t>> sent_to;
  const auto refused = [&](std::size_t part) {
    return call.failed() && std::ranges::any_of(sent, [&](const Sent& before) {
             return before.part == part && call.failed(before.index);
           });
  };
  for (const Piece& piece : pieces) {
    const PromptRows& part = parts[piece.part];
    const SequenceHandle& sequence = *part.sequence;
    std::vector<std::size_t>& mine = sent_to[*piece.address];
    if (mine.size() >= kPiecesAhead) (void)call.wait(mine[mine.size() - kPiecesAhead]);
    if (refused(piece.part)) continue;  // the rest would only be refused too
    if (Status right = call.check(*piece.address, sequence); !right.ok()) {
      late[piece.part] = std::move(right);
      continue;
    }
    const std::size_t row_bytes = sequence.shape.row_bytes();
    const auto payload =
        part.rows.subspan(static_cast<std::size_t>(piece.begin - part.begin) * row_bytes,
                          static_cast<std::size_t>(piece.end - piece.begin) * row_bytes);
    if (!call.reserve(payload.size())) {
      late[piece.part] = {ErrorCode::kDeadlineExceeded,
                          fmt::format("rows {} to {} of sequence {} were not sent", piece.begin,
                                      piece.end, sequence.id)};
      continue;
    }
    sent.push_back({piece.part, call.send({.address = *piece.address,
                                           .greetings = {greeting_of(sequence)},
                                           .payload = {payload}},
                                          wire::Rows{.sequence_id = sequence.id,
                                                     .epoch = sequence.epoch,
                                                     .layer = part.layer,
                                                     .begin = piece.begin,
                                                     .count = piece.end - piece.begin,
                                                     .crc32c = wire::crc32c(payload)})});
    mine.push_back(sent.back().index);
  }
  std::vector<Status> first(parts.size());
  for (const auto& [part, index] : sent) {
    const Status status = outcome(call, index);
    if (first[part].ok()) first[part] = status;
  }
  std::vector<ItemFailure> failed;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (first[i].ok()) first[i] = late[i];
    if (!first[i].ok()) failed.push_back({i, first[i]});
  }
  throw_if_failed(std::move(failed));
}

}  // namespace tributary
