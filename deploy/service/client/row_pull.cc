#include "deploy/service/client/row_pull.h"

#include <algorithm>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "deploy/service/client/row_pieces.h"
#include "deploy/service/client/worker_call.h"

namespace tributary {
namespace {

class PullCall {
 public:
  PullCall(WorkerConnections& connections, std::span<const PulledRows> parts, Deadline deadline)
      : parts_(parts),
        failed_(parts.size()),
        deadline_(deadline),
        clock_(connections.clock()),
        call_(connections, deadline) {
    std::vector<RowPiece> pieces;
    for (std::size_t i = 0; i < parts.size(); ++i) add_part(i, pieces);
    for (const RowPiece& piece : pieces) workers_[*piece.address].waiting.push_back(piece);
  }

  void run() {
    for (auto& [address, worker] : workers_) send_more(worker);
    while (!sent_.empty()) {
      const Sent oldest = sent_.front();
      sent_.pop_front();
      const std::string_view address = *oldest.piece.address;
      const Status status = receive(oldest);
      if (!status.ok() && failed_[oldest.piece.part].ok()) failed_[oldest.piece.part] = status;
      --workers_[address].sent;
      // One that was told of is asked at once; so is who has answered.
      for (auto& [name, worker] : workers_) send_more(worker);
    }
    std::vector<ItemFailure> failed;
    for (std::size_t i = 0; i < failed_.size(); ++i) {
      if (!failed_[i].ok()) failed.push_back({i, failed_[i]});
    }
    throw_if_failed(std::move(failed));
  }

 private:
  struct Worker {
    std::deque<RowPiece> waiting;
    std::size_t sent = 0;  // that have not been answered
  };
  struct Sent {
    RowPiece piece;
    std::size_t index = 0;  // in the call
  };

  void add_part(std::size_t index, std::vector<RowPiece>& pieces) {
    const PulledRows& part = parts_[index];
    const SequenceHandle& sequence = *part.sequence;
    const std::int64_t count = count_rows(sequence, part.layer, part.rows.size());
    check_pull(sequence, part.begin, part.begin + count);
    append_pieces(sequence, index, part.begin, part.begin + count, sequence.home, pieces);
  }

  void send_more(Worker& worker) {
    while (worker.sent < kPiecesAhead && !worker.waiting.empty()) {
      const RowPiece piece = worker.waiting.front();
      worker.waiting.pop_front();
      Status& failed = failed_[piece.part];
      if (!failed.ok()) continue;  // the rest would only be refused too
      failed = send(piece);
      if (failed.ok()) ++worker.sent;
    }
  }

  [[nodiscard]] Status send(const RowPiece& piece) {
    const PulledRows& part = parts_[piece.part];
    const SequenceHandle& sequence = *part.sequence;
    Status right = call_.check(*piece.address, sequence);
    if (!right.ok()) return right;
    const std::span<std::byte> place = place_of(piece);
    if (!call_.reserve(place.size())) {
      return {ErrorCode::kDeadlineExceeded,
              fmt::format("rows {} to {} of sequence {} were not asked for", piece.begin, piece.end,
                          sequence.id)};
    }
    const std::size_t index = call_.send(
        {.address = *piece.address,
         .greetings = {greeting_of(sequence)},
         .landing =
             [place, row_bytes = sequence.shape.row_bytes()](const WorkerReply& answer) {
               const auto& reply = std::get<wire::PullReply>(answer);
               const auto rows = static_cast<std::size_t>(std::max<std::int64_t>(reply.count, 0));
               const std::size_t bytes = std::min(rows, place.size() / row_bytes) * row_bytes;
               return bytes > 0 ? std::vector{place.first(bytes)}
                                : std::vector<std::span<std::byte>>{};
             }},
        wire::Pull{.sequence_id = sequence.id,
                   .epoch = sequence.epoch,
                   .deadline_us = microseconds_left(deadline_, clock_.now()),
                   .layer = part.layer,
                   .begin = piece.begin,
                   .count = piece.end - piece.begin});
    sent_.push_back({piece, index});
    return {};
  }

  [[nodiscard]] std::span<std::byte> place_of(const RowPiece& piece) const {
    const PulledRows& part = parts_[piece.part];
    const std::size_t row_bytes = part.sequence->shape.row_bytes();
    return part.rows.subspan(static_cast<std::size_t>(piece.begin - part.begin) * row_bytes,
                             static_cast<std::size_t>(piece.end - piece.begin) * row_bytes);
  }

  /// Waits for an answer; asks the worker that it names for the rows that it does not bring.
  [[nodiscard]] Status receive(const Sent& sent) {
    Status status = call_.wait(sent.index);
    if (!status.ok()) return status;
    const auto* reply = std::get_if<wire::PullReply>(&call_.reply(sent.index));
    if (reply == nullptr) return {ErrorCode::kInternal, "rows without an outcome"};
    if (!reply->outcome.ok()) return {reply->outcome.code, reply->outcome.message};
    RowPiece rest = sent.piece;
    if (reply->count == rest.end - rest.begin) return {};
    const SequenceHandle& sequence = *parts_[rest.part].sequence;
    const bool known = reply->count >= 0 && reply->count < rest.end - rest.begin &&
                       reply->owner >= 0 && std::cmp_less(reply->owner, sequence.addresses.size());
    if (!known) {
      return {ErrorCode::kMalformedInput,
              fmt::format("worker {}: {} of {} rows of sequence {}, the next at worker {}",
                          *rest.address, reply->count, sent.piece.end - sent.piece.begin,
                          sequence.id, reply->owner)};
    }
    if (Status other = check_other(sequence, reply->owner, *rest.address); !other.ok()) {
      return other;
    }
    rest.begin += reply->count;
    rest.address = &sequence.addresses[static_cast<std::size_t>(reply->owner)];
    workers_[*rest.address].waiting.push_front(rest);
    return {};
  }

  std::span<const PulledRows> parts_;
  std::vector<Status> failed_;  // the first of each part
  Deadline deadline_;
  const Clock& clock_;
  std::map<std::string_view, Worker> workers_;  // by address
  std::deque<Sent> sent_;                       // the oldest first
  WorkerCall call_;
};

}  // namespace

void check_pull(const SequenceHandle& sequence, std::int64_t begin, std::int64_t end) {
  if (begin < 0 || begin >= end || end > sequence.length) {
    fail(ErrorCode::kInvalidArgument, "rows {} to {}: sequence {} has {}", begin, end, sequence.id,
         sequence.length);
  }
}

void pull_rows(WorkerConnections& connections, std::span<const PulledRows> parts,
               Deadline deadline) {
  PullCall(connections, parts, deadline).run();
}

}  // namespace tributary
