#include "deploy/worker/leader.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "comm/wire/access_token.h"
#include "core/base/error.h"
#include "core/base/hash.h"

namespace tributary {
namespace {

/// An order goes out at least so often: a worker that does not answer it is noticed.
constexpr auto kKeepAlive = std::chrono::seconds(1);
/// The same while pages wait for the end of transfers into them: an order asks for it.
constexpr auto kReleasePoll = std::chrono::milliseconds(50);
/// Held items are looked at so often, also when nothing comes.
constexpr auto kHeldPoll = std::chrono::milliseconds(5);

double seconds_between(Deadline::Clock::time_point begin, Deadline::Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

Leader::Leader(const LeaderConfig& config, Worker& worker, LeaderInbox& inbox, LeaderLinks links)
    : config_(config),
      worker_(worker),
      inbox_(inbox),
      links_(std::move(links)),
      sequencer_(config.sequencer),
      book_(config.layers, config.sequencer.placement.leaf_tokens),
      leases_(config.lease) {}

void Leader::run() {
  last_order_ = next_canary_ = Deadline::Clock::now();
  Time next_check = last_order_;
  for (bool stop = false; !stop;) {
    inbox_.wait(next_event(Deadline::Clock::now()));
    inbox_.take(mail_);
    mail_.lost.throw_if_error();
    const Time now = Deadline::Clock::now();
    if (now >= next_check) {
      inbox_.check_beats(config_.worker_timeout).throw_if_error();
      next_check = now + kReleasePoll;
    }
    bool order = false;
    {
      const std::lock_guard lock(mutex_);
      receive();
      end_leases();
      if (round_is_due(now)) form_round(now);
      stop = stop_at_ && (book_.size() == 0 || now >= *stop_at_);
      order = stop || order_due_ || !round_.empty() || now >= last_order_ + kKeepAlive ||
              (sequencer_.closing() > 0 && now >= last_order_ + kReleasePoll);
    }
    send_answers();
    if (order) lead(stop);
  }
}

Leader::Time Leader::next_event(Time now) const {
  if (round_is_due(now)) return now;
  Time next = last_order_ + (sequencer_.closing() > 0 ? Time::duration(kReleasePoll) : kKeepAlive);
  if (!held_.empty()) next = std::min(next, now + kHeldPoll);
  if (!waiting_.empty()) next = std::min(next, waiting_.front().arrival + config_.batch_wait);
  if (const auto end = leases_.next_end()) next = std::min(next, *end);
  if (stop_at_) next = std::min(next, *stop_at_);
  return next;
}

/// A sequence in an open step whose item has not come is worth a short wait: with it the round
/// costs little more.
bool Leader::round_is_due(Time now) const {
  if (waiting_.empty()) return false;
  return waiting_.size() >=
             std::min(book_.open_steps(), static_cast<std::size_t>(config_.max_batch)) ||
         now >= waiting_.front().arrival + config_.batch_wait;
}

void Leader::form_round(Time now) {
  requests_.clear();
  while (!waiting_.empty() && round_.size() < static_cast<std::size_t>(config_.max_batch)) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    if (now >= next.deadline) {
      book_.set_waiting(next.item.sequence_id, false);
      refuse(next, {ErrorCode::kDeadlineExceeded, "no round began before the item's deadline"});
      continue;
    }
    metrics_.wait_seconds.observe(seconds_between(next.arrival, now));
    requests_.push_back({next.item.sequence_id, next.item.layer});
    round_.push_back(std::move(next));
  }
  if (round_.empty()) return;
  sequencer_.order_round(requests_, choose_canary(now));
}

CanaryOrder Leader::choose_canary(Time now) {
  if (config_.canary_interval.count() == 0 || now < next_canary_) return {};
  next_canary_ = now + config_.canary_interval;
  // Any item and head will do, as long as none is left out for ever.
  const std::uint64_t draw = mix64(++canary_counter_ * kGoldenGamma);
  return {static_cast<std::int32_t>(draw % round_.size()),
          static_cast<std::int32_t>((draw >> 32) % static_cast<std::uint64_t>(config_.heads))};
}

void Leader::lead(bool stop) {
  Order order;
  {
    const std::lock_guard lock(mutex_);
    order = sequencer_.take_order();
  }
  order.stop = stop;
  order_due_ = false;
  links_.wake();
  const Time begin = Deadline::Clock::now();
  const RoundReport report = worker_.lead(order);
  last_order_ = Deadline::Clock::now();
  if (!report.status.ok() && report.status.code() != ErrorCode::kWorkerFailed) {
    report.status.throw_if_error();
  }
  {
    const std::lock_guard lock(mutex_);
    if (report.status.ok()) sequencer_.release_closed(report.drained_round);
    finish_round(report, seconds_between(begin, last_order_));
  }
  words_.insert(words_.end(), std::make_move_iterator(words_after_order_.begin()),
                std::make_move_iterator(words_after_order_.end()));
  words_after_order_.clear();
  send_answers();
}

void Leader::finish_round(const RoundReport& report, double seconds) {
  if (round_.empty()) return;
  const wire::Outcome outcome{report.status.code(), report.status.message()};
  for (const Waiting& waiting : round_) {
    book_.set_waiting(waiting.item.sequence_id, false);
    if (outcome.ok()) {
      book_.ran(waiting.item.sequence_id, waiting.item.layer);
    } else {
      refuse(waiting, outcome);
    }
  }
  ++metrics_.rounds;
  if (!outcome.ok()) ++metrics_.failed_rounds;
  metrics_.batch.observe(static_cast<double>(round_.size()));
  metrics_.round_seconds.observe(seconds);
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (static_cast<Phase>(p) == Phase::kFill) continue;  // rows come by the data plane
    metrics_.phase_seconds[p].observe(report.phase_us[p] * 1e-6);
  }
  metrics_.exchanged_bytes += report.exchanged_bytes;
  // A round that failed early says nothing of its workers.
  if (report.worker_rows.size() == report.worker_attend_us.size()) {
    attended_.resize(report.worker_rows.size());
    for (std::size_t r = 0; r < report.worker_rows.size(); ++r) {
      attended_[r].rows += report.worker_rows[r] * report.rounds;
      attended_[r].seconds += report.worker_attend_us[r] * 1e-6;
    }
  }
  if (!report.worker_rows.empty()) {
    const auto rows = std::accumulate(report.worker_rows.begin(), report.worker_rows.end(), 0.0);
    if (rows > 0) {
      metrics_.balance = static_cast<double>(std::ranges::max(report.worker_rows)) *
                         static_cast<double>(report.worker_rows.size()) / rows;
    }
  }
  if (report.canary_checked) {
    ++metrics_.canaries;
    metrics_.canary_error = report.canary_error;
    // Written so that a NaN is a failure.
    if (!(report.canary_error <= config_.canary_bound)) ++metrics_.canary_failures;
  }
  round_.clear();
}

void Leader::send_answers() {
  for (auto& [rank, refused] : refusals_) links_.refuse(rank, std::move(refused));
  for (auto& [rank, answer] : answers_) links_.answer(rank, std::move(answer));
  for (const FromPool& word : words_) links_.tell(word);
  refusals_.clear();
  answers_.clear();
  words_.clear();
}

const Sequence* Leader::find(SequenceId id) const {
  return sequencer_.table().contains(id) ? &sequencer_.table().at(id) : nullptr;
}

SequenceInfo Leader::info(const Sequence& s) const {
  SequenceInfo info{.id = s.id,
                    .epoch = s.epoch,
                    .state = book_.state(s.id),
                    .home = s.home,
                    .prompt_tokens = s.prompt_tokens,
                    .max_new_tokens = s.limit_tokens - s.prompt_tokens,
                    .length = s.length,
                    .extents = {},
                    .token = wire::access_token(config_.pool_key, s.id),
                    .idempotency_key = book_.idempotency_key(s.id),
                    .missing = book_.missing(s.id)};
  const std::int64_t leaf_tokens = sequencer_.table().leaf_tokens();
  for (std::int64_t begin = 0; begin < s.prompt_tokens; begin += leaf_tokens) {
    const std::int64_t end = std::min(begin + leaf_tokens, s.prompt_tokens);
    const int rank = s.leaves[static_cast<std::size_t>(begin / leaf_tokens)].owner;
    if (info.extents.empty() || info.extents.back().rank != rank) {
      info.extents.push_back({begin, end, rank});
    } else {
      info.extents.back().end = end;
    }
  }
  return info;
}

void Leader::describe(RegisterPool& pool) const {
  const std::lock_guard lock(mutex_);
  pool.draining = draining_;
  pool.last_incarnation = last_incarnation_;
  pool.sequences.clear();
  for (const SequenceId id : book_.ids()) {
    pool.sequences.push_back(info(sequencer_.table().at(id)));
  }
}

Heartbeat Leader::heartbeat() const {
  using std::chrono::duration_cast, std::chrono::milliseconds;
  Heartbeat heartbeat;
  const auto ages = inbox_.beat_ages(Deadline::Clock::now());
  const auto beats = inbox_.beats();
  const std::lock_guard lock(mutex_);
  heartbeat.draining = draining_;
  heartbeat.metrics = metrics_;
  PoolMetrics& metrics = heartbeat.metrics;
  book_.count(metrics.filling, metrics.ready, metrics.stepping);
  for (std::size_t r = 0; r < beats.size(); ++r) {
    const PagePool& pages = sequencer_.pools()[r];
    heartbeat.workers.push_back(
        {.rank = static_cast<int>(r),
         .pages_used = pages.used(),
         .pages_reserved = pages.reserved(),
         .homes = sequencer_.loads()[r].homes,
         .heartbeat_age_ms = duration_cast<milliseconds>(ages[r]).count(),
         .attended_rows = r < attended_.size() ? attended_[r].rows : 0,
         .attend_seconds = r < attended_.size() ? attended_[r].seconds : 0});
    const wire::Beat& beat = beats[r];
    metrics.ingested_rows += beat.ingested_rows;
    metrics.ingested_bytes += beat.ingested_bytes;
    metrics.connections += beat.connections;
    for (std::size_t i = 0; i < wire::kRefusals; ++i) metrics.refused_rows[i] += beat.refused[i];
    for (std::size_t i = 0; i < DurationHistogram::kBuckets && i < beat.ingest_us_buckets.size();
         ++i) {
      metrics.ingest_seconds.counts[i] += beat.ingest_us_buckets[i];
    }
    metrics.ingest_seconds.sum += beat.ingest_us_sum * 1e-6;
  }
  return heartbeat;
}

}  // namespace tributary
