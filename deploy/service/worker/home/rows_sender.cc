#include "deploy/service/worker/home/rows_sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/wire/crc32c.h"
#include "core/base/error.h"
#include "core/pool/page_runs.h"
#include "deploy/service/protocol/sequence_json.h"

namespace tributary {
namespace {

/// A client may know of a commit or a truncation that comes here with the order after the next: the
/// one that its answer did not wait for may follow one that is on its way.
constexpr int kOrders = 2;
/// Kept for the next pulls, which ask for the same sizes again and again.
constexpr std::size_t kSpare = 16;
constexpr std::size_t kMaxSpareBytes = std::size_t{2} << 20;

}  // namespace

RowsSender::RowsSender(int rank, const SequenceTable& table, const IngestTable& arrived,
                       Backend& backend, const Cache& cache, Links links, Clock& clock)
    : rank_(rank),
      table_(table),
      arrived_(arrived),
      backend_(backend),
      cache_(cache),
      row_bytes_(cache.layout().row_bytes()),
      links_(std::move(links)),
      clock_(clock) {}

Status RowsSender::check(const wire::Pull& pull, bool allowed) const {
  if (!allowed) {
    return {ErrorCode::kPermissionDenied,
            fmt::format("the connection has not proven sequence {}", pull.sequence_id)};
  }
  const int layers = cache_.layout().layers;
  if (pull.layer < 0 || pull.layer >= layers) {
    return {ErrorCode::kInvalidArgument, fmt::format("rows of sequence {}: layer {}, expected 0 "
                                                     ".. {}",
                                                     pull.sequence_id, pull.layer, layers - 1)};
  }
  const auto most = static_cast<std::int64_t>(kMaxPullBytes / row_bytes_);
  if (pull.begin < 0 || pull.begin > kMaxSequenceTokens || pull.count < 1 || pull.count > most) {
    return {ErrorCode::kInvalidArgument,
            fmt::format("{} rows of sequence {} from {} on, expected 1 .. {} from 0 .. {} on",
                        pull.count, pull.sequence_id, pull.begin, most, kMaxSequenceTokens)};
  }
  return {};
}

void RowsSender::receive(PeerId peer, const wire::Pull& pull, bool allowed) {
  Status status = check(pull, allowed);
  if (status.ok()) {
    auto job = std::make_unique<Job>();
    job->peer = peer;
    job->asked = pull;
    job->deadline = clock_.now() + std::chrono::microseconds(pull.deadline_us);
    job->reply.request = pull.request;
    const ByteShares::Share share = job->share(row_bytes_);
    const std::lock_guard lock(mutex_);
    if (held_.take(std::span(&share, 1))) {
      if (!spare_.empty()) {
        job->rows = std::move(spare_.back());
        spare_.pop_back();
      }
      lines_[peer].waiting.push_back(std::move(job));
    } else {
      status = {ErrorCode::kPoolFull, "too many rows are asked for at this worker; try again"};
    }
  }
  if (status.ok()) {
    links_.wake();
  } else {
    links_.reply(peer, {.request = pull.request, .outcome = {status.code(), status.message()}}, {},
                 {});
  }
}

/// Connections take turns.
RowsSender::Lines::iterator RowsSender::next_line() {
  const auto ready = [](const Lines::value_type& line) {
    return !line.second.waiting.empty() && line.second.unsent < kMaxUnsentBytes;
  };
  const auto begin = lines_.upper_bound(last_);
  const auto next = std::find_if(begin, lines_.end(), ready);
  if (next != lines_.end()) return next;
  const auto wrapped = std::find_if(lines_.begin(), begin, ready);
  return wrapped != begin ? wrapped : lines_.end();
}

bool RowsSender::serve() {
  if (!current_) {
    const std::lock_guard lock(mutex_);
    const auto line = next_line();
    if (line == lines_.end()) return false;
    last_ = line->first;
    current_ = std::move(line->second.waiting.front());
    line->second.waiting.pop_front();
  }
  bool ended = false;
  const Status status = status_of([&] {
    if (clock_.now() >= current_->deadline) {
      fail(ErrorCode::kDeadlineExceeded, "rows of sequence {} were not read before the deadline",
           current_->asked.sequence_id);
    }
    ended = read(*current_);
  });
  if (!status.ok() || ended) {
    finish(std::move(current_), status);
  } else if (is_ahead(current_->asked)) {
    wait_for_order(std::move(current_));
  }
  if (current_) return true;
  const std::lock_guard lock(mutex_);
  return next_line() != lines_.end();
}

bool RowsSender::is_ahead(const wire::Pull& pull) const {
  if (!table_.contains(pull.sequence_id)) return false;
  const Sequence& s = table_.at(pull.sequence_id);
  return pull.epoch > s.epoch || (pull.epoch == s.epoch && pull.begin + pull.count > s.length);
}

bool RowsSender::read(Job& job) {
  const wire::Pull& asked = job.asked;
  const std::int64_t end = asked.begin + asked.count;
  const std::int64_t begin = asked.begin + job.reply.count;
  if (!table_.contains(asked.sequence_id)) {
    fail(ErrorCode::kNotFound, "sequence {}: not here", asked.sequence_id);
  }
  const Sequence& s = table_.at(asked.sequence_id);
  if (is_ahead(asked) && job.orders < kOrders) return false;
  check_epoch(s, asked.epoch).throw_if_error();
  if (end > s.length) {
    fail(ErrorCode::kInvalidArgument, "rows {} to {}: sequence {} has {}", asked.begin, end, s.id,
         s.length);
  }
  const std::int64_t leaf_tokens = table_.leaf_tokens();
  const std::int64_t leaf = begin / leaf_tokens;
  const Leaf& held = s.leaves[static_cast<std::size_t>(leaf)];
  if (held.owner == kNoWorker) {
    fail(ErrorCode::kFailedPrecondition,
         "rows {} to {} of sequence {} were lost with a worker, and wait for room", begin, end,
         s.id);
  }
  if (held.owner != rank_) {
    job.reply.owner = held.owner;
    return true;
  }
  const auto piece = static_cast<std::int64_t>(std::max<std::size_t>(kPieceBytes / row_bytes_, 1));
  const std::int64_t piece_end = std::min({end, (leaf + 1) * leaf_tokens, begin + piece});
  if (const auto missing = arrived_.first_missing(s.id, asked.layer, begin, piece_end)) {
    fail(ErrorCode::kFailedPrecondition, "row {} of layer {} of sequence {} has not arrived",
         *missing, asked.layer, s.id);
  }
  runs_.clear();
  append_page_runs(held.pages, begin - leaf * leaf_tokens, piece_end - begin, runs_);
  if (job.reply.count == 0) {
    static_cast<void>(job.rows.resize(static_cast<std::size_t>(asked.count) * row_bytes_));
  }
  backend_.synchronize(Deadline(job.deadline));
  auto rest = job.rows.span().subspan(static_cast<std::size_t>(job.reply.count) * row_bytes_);
  for (const PageRun& run : runs_) {
    const auto part = rest.first(static_cast<std::size_t>(run.count) * row_bytes_);
    backend_.load_rows(cache_, asked.layer, run.page, run.slot, part);
    job.reply.crc32c = wire::crc32c(part, job.reply.crc32c);
    rest = rest.subspan(part.size());
  }
  job.reply.count += piece_end - begin;
  return piece_end == end;
}

void RowsSender::wait_for_order(std::unique_ptr<Job> job) {
  if (ahead_.empty()) links_.want_order();
  ahead_.push_back(std::move(job));
}

void RowsSender::order_ended() {
  if (ahead_.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    for (auto& job : ahead_) {
      ++job->orders;
      lines_[job->peer].waiting.push_back(std::move(job));
    }
  }
  ahead_.clear();
  links_.wake();
}

void RowsSender::finish(std::unique_ptr<Job> job, const Status& status) {
  const std::shared_ptr<Job> done = std::move(job);
  if (!status.ok()) {
    done->reply = {.request = done->asked.request, .outcome = {status.code(), status.message()}};
  }
  const auto rows =
      done->rows.span().first(static_cast<std::size_t>(done->reply.count) * row_bytes_);
  if (rows.empty()) {
    give_back(*done, 0);
    links_.reply(done->peer, done->reply, {}, {});
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    rows_ += static_cast<std::uint64_t>(done->reply.count);
    lines_[done->peer].unsent += rows.size();
  }
  links_.reply(done->peer, done->reply, rows, [this, done, sent = rows.size()] {
    give_back(*done, sent);
    links_.wake();
  });
}

void RowsSender::give_back(Job& job, std::size_t sent) {
  const ByteShares::Share share = job.share(row_bytes_);
  const std::lock_guard lock(mutex_);
  held_.give_back(std::span(&share, 1));
  const std::size_t bytes = job.rows.capacity();
  if (bytes > 0 && bytes <= kMaxSpareBytes && spare_.size() < kSpare) {
    spare_.push_back(std::move(job.rows));
  }
  const auto line = lines_.find(job.peer);
  if (line == lines_.end()) return;
  line->second.unsent -= sent;
  if (line->second.waiting.empty() && line->second.unsent == 0) lines_.erase(line);
}

void RowsSender::add_counts(wire::Beat& beat) const {
  const std::lock_guard lock(mutex_);
  beat.pulled_rows = rows_;
  beat.pulled_bytes = rows_ * row_bytes_;
}

std::uint64_t RowsSender::refused() const {
  const std::lock_guard lock(mutex_);
  return held_.refused();
}

}  // namespace tributary
