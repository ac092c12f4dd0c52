#include "deploy/service/client/row_push.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/wire/crc32c.h"
#include "core/base/error.h"
#include "deploy/service/client/row_pieces.h"
#include "deploy/service/client/worker_call.h"

namespace tributary {
namespace {

/// Sends the first piece of every worker, then the second: no worker waits until another has got
/// all.
void take_turns(std::vector<RowPiece>& pieces) {
  std::map<std::string_view, std::size_t> count;
  std::vector<std::pair<std::size_t, RowPiece>> turns;
  turns.reserve(pieces.size());
  for (const RowPiece& piece : pieces) turns.emplace_back(count[*piece.address]++, piece);
  std::ranges::stable_sort(turns, {}, &std::pair<std::size_t, RowPiece>::first);
  std::ranges::transform(turns, pieces.begin(), &std::pair<std::size_t, RowPiece>::second);
}

std::int64_t check(const PromptRows& part) {
  const SequenceHandle& sequence = *part.sequence;
  const std::int64_t count = count_rows(sequence, part.layer, part.rows.size());
  const auto has_all = [&](const Extent& lost) {
    return lost.begin <= part.begin && part.begin + count <= lost.end;
  };
  if (std::ranges::any_of(sequence.lost, has_all)) return count;
  if (part.begin < 0 || part.begin > sequence.prompt_tokens - count) {
    fail(ErrorCode::kInvalidArgument, "rows {} to {}: the prompt of sequence {} has {}", part.begin,
         part.begin + count, sequence.id, sequence.prompt_tokens);
  }
  if (part.begin < sequence.present_tokens) {
    fail(ErrorCode::kAlreadyExists,
         "rows {} to {}: sequence {} shares those below {}, which are there", part.begin,
         part.begin + count, sequence.id, sequence.present_tokens);
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

void push_rows(WorkerConnections& connections, std::span<const PromptRows> parts,
               Deadline deadline) {
  std::vector<RowPiece> pieces;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const PromptRows& part = parts[i];
    append_pieces(*part.sequence, i, part.begin, part.begin + check(part), std::nullopt, pieces);
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
  for (const RowPiece& piece : pieces) {
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
