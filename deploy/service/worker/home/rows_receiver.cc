#include "deploy/service/worker/home/rows_receiver.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/wire/crc32c.h"
#include "core/base/error.h"

namespace tributary {
namespace {

wire::Refusal reason_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kNotFound:
      return wire::Refusal::kUnknownSequence;
    case ErrorCode::kStaleEpoch:
    case ErrorCode::kWorkerLost:
      return wire::Refusal::kStaleEpoch;
    case ErrorCode::kAlreadyExists:
    case ErrorCode::kUnavailable:  // the same rows are on their way
      return wire::Refusal::kRepeated;
    default:
      return wire::Refusal::kOutOfRange;
  }
}

}  // namespace

RowsReceiver::RowsReceiver(int rank, IngestTable& table, Backend& backend, Cache& cache,
                           Links links, Clock& clock)
    : rank_(rank),
      table_(table),
      backend_(backend),
      cache_(cache),
      links_(std::move(links)),
      clock_(clock) {}

std::optional<Landing> RowsReceiver::receive(PeerId peer, const wire::Rows& rows, bool allowed,
                                             std::size_t payload_bytes) {
  using wire::Refusal;
  if (!allowed) {
    refuse(peer, rows.request, Refusal::kUnauthorized,
           {ErrorCode::kPermissionDenied,
            fmt::format("the connection has not proven sequence {}", rows.sequence_id)});
    return {};
  }
  const std::size_t row_bytes = cache_.layout().row_bytes();
  if (rows.count < 1 || payload_bytes % row_bytes != 0 ||
      payload_bytes / row_bytes != static_cast<std::uint64_t>(rows.count)) {
    refuse(peer, rows.request, Refusal::kMalformed,
           {ErrorCode::kInvalidArgument, fmt::format("{} rows of {} bytes in a payload of {} bytes",
                                                     rows.count, row_bytes, payload_bytes)});
    return {};
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->peer = peer;
  transfer->rows = rows;
  transfer->arrival = clock_.now();
  const Status status = status_of([&] {
    transfer->table =
        table_.begin(rows.sequence_id, rows.epoch, rows.layer, rows.begin, rows.count, rows.crc32c);
  });
  if (!status.ok()) {
    refuse(peer, rows.request, reason_of(status.code()), status);
    return {};
  }
  if (transfer->table.ticket == 0) {  // they are here: the sender has not heard so
    links_.reply(peer, {.request = rows.request, .outcome = {}});
    return {};
  }
  transfer->pieces = pages_of(rows, transfer->table.runs);
  if (transfer->pieces.empty()) {
    if (payload_bytes > kMaxStagedBytes - std::min(kMaxStagedBytes, staged_bytes_)) {
      (void)table_.end(transfer->table.ticket, /*arrived=*/false);
      refuse(peer, rows.request, Refusal::kAborted,
             {ErrorCode::kPoolFull, fmt::format("{} bytes of rows are on their way, limit {}",
                                                staged_bytes_, kMaxStagedBytes)});
      return {};
    }
    staged_bytes_ += payload_bytes;
    transfer->staged.resize(payload_bytes);
    transfer->pieces.emplace_back(transfer->staged);
  }
  {
    const std::lock_guard lock(mutex_);
    senders_.emplace(transfer->table.ticket, peer);
  }
  return Landing{
      .pieces = transfer->pieces,
      .done = [this, transfer](const Status& ended) { landed(*transfer, ended); },
      .inspect = [crc = &transfer->crc32c](auto part) { *crc = wire::crc32c(part, *crc); }};
}

/// The rows' places in their pages, neighbours joined; empty if the backend keeps pages in another
/// form.
std::vector<std::span<std::byte>> RowsReceiver::pages_of(const wire::Rows& rows,
                                                         std::span<const PageRun> runs) {
  const std::size_t row_bytes = cache_.layout().row_bytes();
  std::vector<std::span<std::byte>> pieces;
  for (const PageRun& run : runs) {
    const auto page = backend_.host_page(cache_, rows.layer, run.page);
    if (page.empty()) return {};
    const auto part = page.subspan(static_cast<std::size_t>(run.slot) * row_bytes,
                                   static_cast<std::size_t>(run.count) * row_bytes);
    if (!pieces.empty() && pieces.back().data() + pieces.back().size() == part.data()) {
      pieces.back() = {pieces.back().data(), pieces.back().size() + part.size()};
    } else {
      pieces.push_back(part);
    }
  }
  return pieces;
}

void RowsReceiver::tell(SequenceId id) {
  if (table_.home(id)) tell(id, table_.progress(id));
}

void RowsReceiver::tell(SequenceId id, const IngestTable::Progress& progress) {
  links_.progress({.rank = rank_,
                   .sequence_id = id,
                   .epoch = progress.epoch,
                   .rows_done = progress.rows_done,
                   .rows_total = progress.rows_total,
                   .missing_layer = progress.missing_layer,
                   .missing_position = progress.missing_position});
}

void RowsReceiver::landed(Transfer& transfer, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    senders_.erase(transfer.table.ticket);
  }
  Status outcome = status;
  auto reason = wire::Refusal::kAborted;
  if (outcome.ok() && transfer.crc32c != transfer.rows.crc32c) {
    reason = wire::Refusal::kCorrupt;
    outcome = {ErrorCode::kCorrupt,
               fmt::format("layer {}, rows from {}: checksum {:#010x}, expected {:#010x}",
                           transfer.rows.layer, transfer.rows.begin, transfer.crc32c,
                           transfer.rows.crc32c)};
  }
  for (std::size_t i = 0; outcome.ok() && i < transfer.pieces.size(); ++i) {
    if (const auto fault = cache_.layout().row().fault(transfer.pieces[i]); !fault.empty()) {
      reason = wire::Refusal::kMalformed;
      outcome = {ErrorCode::kInvalidArgument,
                 fmt::format("layer {}, rows from {}: {}", transfer.rows.layer, transfer.rows.begin,
                             fault)};
    }
  }
  if (outcome.ok() && !transfer.staged.empty()) outcome = status_of([&] { store(transfer); });
  staged_bytes_ -= transfer.staged.size();
  const auto progress = table_.end(transfer.table.ticket, outcome.ok());
  if (outcome.ok() && !progress.counted) {
    const SequenceId id = transfer.rows.sequence_id;
    const bool runs = table_.home(id).has_value();
    outcome = {runs ? ErrorCode::kWorkerLost : ErrorCode::kNotFound,
               fmt::format("sequence {} has {} during the transfer", id,
                           runs ? "lost these rows" : "ended")};
  }
  if (!outcome.ok()) {
    refuse(transfer.peer, transfer.rows.request, reason, outcome);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    rows_ += static_cast<std::uint64_t>(transfer.rows.count);
    bytes_ += static_cast<std::uint64_t>(transfer.rows.count) * cache_.layout().row_bytes();
    seconds_.observe(seconds_between(transfer.arrival, clock_.now()));
  }
  // The leader is told first: if it is on the same connection path, a client that learns of its
  // last rows finds the sequence ready.
  tell(transfer.rows.sequence_id, progress);
  links_.reply(transfer.peer, {.request = transfer.rows.request, .outcome = {}});
}

void RowsReceiver::store(const Transfer& transfer) {
  const std::size_t row_bytes = cache_.layout().row_bytes();
  std::span<const std::byte> rest(transfer.staged);
  for (const PageRun& run : transfer.table.runs) {
    const auto part = rest.first(static_cast<std::size_t>(run.count) * row_bytes);
    backend_.store_rows(cache_, transfer.rows.layer, run.page, run.slot, part);
    rest = rest.subspan(part.size());
  }
}

void RowsReceiver::refuse(PeerId peer, std::uint64_t request, wire::Refusal reason,
                          const Status& status) {
  count_refusal(reason);
  links_.reply(peer, {.request = request, .outcome = {status.code(), status.message()}});
}

void RowsReceiver::count_refusal(wire::Refusal reason) {
  const std::lock_guard lock(mutex_);
  ++refused_[static_cast<std::size_t>(reason)];
}

void RowsReceiver::count_unproven(std::size_t sequences) {
  const std::lock_guard lock(mutex_);
  refused_[static_cast<std::size_t>(wire::Refusal::kUnauthorized)] += sequences;
}

std::vector<PeerId> RowsReceiver::late_senders() {
  std::vector<std::uint64_t> ended = table_.closed_transfers();
  std::ranges::sort(ended);
  std::vector<PeerId> late;
  const std::lock_guard lock(mutex_);
  for (const std::uint64_t ticket : ended) {
    const auto sender = senders_.find(ticket);
    if (sender != senders_.end() && std::ranges::binary_search(ended_, ticket) &&
        std::ranges::find(late, sender->second) == late.end()) {
      late.push_back(sender->second);
    }
  }
  ended_ = std::move(ended);
  return late;
}

void RowsReceiver::add_counts(wire::Beat& beat) const {
  const std::lock_guard lock(mutex_);
  beat.ingested_rows = rows_;
  beat.ingested_bytes = bytes_;
  beat.refused = refused_;
  beat.ingest_us_buckets.assign(seconds_.counts.begin(), seconds_.counts.end());
  beat.ingest_us_sum = seconds_.sum * 1e6;
}

}  // namespace tributary
