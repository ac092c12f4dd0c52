#include "deploy/service/worker/leader/leader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/error.h"
#include "core/base/hash.h"
#include "core/cache/leaves.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;

/// An order goes out at least this often, so that a worker that does not answer is noticed.
constexpr auto kKeepAlive = std::chrono::seconds(1);
/// The interval while pages wait for the end of transfers into them: an order asks for it.
constexpr auto kReleasePoll = std::chrono::milliseconds(50);
/// After a collective failed: a worker that is gone is known this soon, and so are the words of all
/// that waited for somebody.
constexpr auto kVerdictPause = std::chrono::seconds(2);

}  // namespace

Leader::Leader(const LeaderConfig& config, Lead lead, LeaderInbox& inbox, LeaderLinks links,
               Clock& clock)
    : config_(config),
      lead_(std::move(lead)),
      inbox_(inbox),
      links_(std::move(links)),
      clock_(clock),
      cost_meter_(config_.sequencer.placement.model, config_.sequencer.placement.workers),
      desk_(config_, outbox_, meter_),
      move_schedule_(move_schedule_config(config_.sequencer.options.move_bytes_per_s,
                                          config_.attention().row_bytes()),
                     desk_.sequencer()),
      departures_(config_.sequencer.placement.workers,
                  milliseconds(config_.options.drain_timeout_ms)) {
  for (int r = 0; r < config_.sequencer.placement.workers; ++r) members_.push_back(r);
}

void Leader::run() {
  last_order_ = next_canary_ = clock_.now();
  for (bool stop = false; !stop;) {
    if (lose_workers()) {  // before anything else is looked at
      lead(false);
      continue;
    }
    if (!links_.between_orders || !links_.between_orders()) inbox_.wait(next_event(clock_.now()));
    inbox_.take(mail_);
    mail_.ended.throw_if_error();
    const Time now = clock_.now();
    bool order = false;
    {
      const std::lock_guard lock(mutex_);
      desk_.receive(mail_, now);
      see_off(now);
      desk_.end_leases(now);
      if (desk_.round_is_due(now)) form_round(now);
      stop = desk_.may_stop(now);
      const bool due = desk_.take_order_due() || mail_.order_wanted || !mail_.joined.empty();
      order = stop || due || !round_.empty() || now >= move_schedule_.next_event() ||
              now >= last_order_ + order_interval();
    }
    outbox_.send(links_);
    if (order) lead(stop);
  }
  if (desk_.is_empty()) links_.tell(Goodbye{});
}

/// After a failed collective it waits for news of a lost worker: whoever made it fail is silent for
/// as long at most. Returns whether there are fewer members now.
bool Leader::lose_workers() {
  std::vector<LeaderInbox::Lost> gone = inbox_.take_lost(clock_.now());
  if (gone.empty() && !broken_.ok()) {
    // Who vanished in the round is known by now, or the others have waited for him as long.
    gone = inbox_.take_lost(last_order_ + kVerdictPause);
    if (const auto rank = gone.empty() && links_.accused ? links_.accused() : std::nullopt) {
      inbox_.post_lost(*rank, {ErrorCode::kWorkerFailed,
                               fmt::format("other workers waited for worker {} in vain", *rank)});
    }
    if (gone.empty()) gone = inbox_.take_lost(last_order_ + config_.failure_timeout);
  }
  if (gone.empty()) {
    broken_.throw_if_error();
    const std::lock_guard lock(mutex_);
    for (const int rank : departures_.due(desk_.sequencer().ledger(), clock_.now())) {
      gone.push_back({rank, {}});
    }
  }
  bool members = false;
  for (const auto& [rank, reason] : gone) {
    if (std::ranges::count(slots_, rank) > 0) continue;  // it has left, and was lost as it did
    if (links_.leave_out) links_.leave_out(rank, reason);
    if (std::erase(members_, rank) == 0) continue;  // it had come, and was not taken in
    members = true;
    slots_.push_back(rank);
    inbox_.post_lost(rank, {});  // nor lost or silent once more
    const std::lock_guard lock(mutex_);
    departures_.gone(rank, reason.ok());
    desk_.lose_worker(rank, clock_.now());
  }
  if (!members) return !broken_.ok() && lose_workers();
  regroups_ = true;
  broken_ = {};
  return true;
}

void Leader::open_slots() {
  for (const int rank : std::exchange(slots_, {})) {
    if (links_.open_slot) links_.open_slot(rank);
  }
}

/// The order that newcomers begin with has all sequences. What is decided later may be about them.
void Leader::give_slots(Order& order) {
  if (mail_.joined.empty()) return;
  order.table = desk_.sequencer().ledger().table().all();
  for (const WorkerInfo& worker : std::exchange(mail_.joined, {})) {
    const int rank = worker.rank;
    members_.insert(std::ranges::lower_bound(members_, rank), rank);
    desk_.sequencer().losses().take_worker(rank);
    departures_.back(rank);
    joined_[rank] = worker;
    outbox_.tell_after_order(WorkerJoined{worker});
    if (links_.take_in) links_.take_in(rank);
  }
  desk_.want_order();  // there is room
  regroups_ = true;
}

/// Workers that were asked to end are emptied first, unless the whole pool ends.
void Leader::see_off(Time now) {
  if (desk_.stops()) return;
  for (const int rank : mail_.leaving) {
    if (!departures_.ask(rank, now)) continue;
    const Status emptied =
        status_of([&] { desk_.drain_worker({.worker = rank, .draining = true}); });
    if (!emptied.ok()) departures_.hurry(rank, now);
  }
}

Time Leader::next_event(Time now) const {
  return std::min({desk_.next_event(now), move_schedule_.next_event(),
                   last_order_ + order_interval(), departures_.next_event(now)});
}

Duration Leader::order_interval() const {
  const Sequencer& sequencer = desk_.sequencer();
  const bool waits = sequencer.sequences().closing() > 0 || sequencer.copies().size() > 0;
  return waits ? Duration(kReleasePoll) : kKeepAlive;
}

void Leader::form_round(Time now) {
  desk_.take_round(now, round_);
  if (round_.empty()) return;
  items_.clear();
  for (const WaitingItem& waiting : round_) {
    items_.push_back(waiting.item);
  }
  desk_.sequencer().steps().order_round(items_, choose_canary(now));
}

CanaryOrder Leader::choose_canary(Time now) {
  const milliseconds interval(config_.options.canary_interval_ms);
  if (interval.count() == 0 || now < next_canary_) return {};
  next_canary_ = now + interval;
  // Any item and head will do, as long as none is left out for ever.
  const std::uint64_t draw = mix64(++canary_counter_ * kGoldenGamma);
  return {static_cast<std::int32_t>(draw % round_.size()),
          static_cast<std::int32_t>((draw >> 32) %
                                    static_cast<std::uint64_t>(config_.attention().heads))};
}

void Leader::lead(bool stop) {
  Order order;
  {
    const std::lock_guard lock(mutex_);
    move_schedule_.prepare(clock_.now());
    order = desk_.sequencer().take_order();
    if (!stop) give_slots(order);
  }
  order.stop = stop;
  if (std::exchange(regroups_, false)) {
    order.members = members_;
    order.generation = ++generation_;
  }
  const Time begin = clock_.now();
  const RoundReport report = lead_(order);
  last_order_ = clock_.now();
  if (report.regrouped) open_slots();
  if (links_.round && !round_.empty() && report.status.ok()) {
    links_.round(report, round_.size(), pages_used());
  }
  if (!report.status.ok() && report.status.code() != ErrorCode::kWorkerFailed) {
    if (!report.broken || stop) report.status.throw_if_error();
    broken_ = report.status;
  }
  bool copied = false;
  {
    const std::lock_guard lock(mutex_);
    desk_.sequencer().order_ended(report.status.ok());
    copied = report.status.ok() || (!report.broken && desk_.sequencer().copies().size() == 0);
    move_schedule_.order_ended(report.copy_us);
    if (report.status.ok()) desk_.sequencer().sequences().release_closed(report.drained_round);
    if (report.broken) {
      desk_.round_broke(round_);
      if (!round_.empty()) {
        broken_round_ = std::exchange(round_, {});
        broken_number_ = order.round;
      }
    } else if (!order.members.empty()) {
      for (const WaitingItem& item : std::exchange(broken_round_, {})) {
        const auto home = static_cast<std::size_t>(item.rank);
        const bool here = home < report.completed_rounds.size();
        if (here && report.completed_rounds[home] == broken_number_) desk_.has_run(item);
      }
    }
    if (!round_.empty()) {
      measure_costs(report);
      desk_.round_ended(round_, {report.status.code(), report.status.message()}, last_order_);
      meter_.round_ended(report, round_.size(), seconds_between(begin, last_order_),
                         config_.canary_bound, last_order_);
      round_.clear();
    }
    // Pulls wait for an order that has succeeded, even if it has nothing to copy any more.
    if (!order.copies.empty() && !report.status.ok() && copied) desk_.want_order();
    desk_.give_away(last_order_);
  }
  // Who is told of a sequence may read its rows at once.
  if (copied) outbox_.order_done();
  outbox_.send(links_);
}

std::int64_t Leader::pages_used() const {
  std::int64_t used = 0;
  for (const PagePool& pool : desk_.sequencer().ledger().pools()) used += pool.used();
  return used;
}

void Leader::measure_costs(const RoundReport& report) {
  std::int64_t tokens = 0;
  for (const WaitingItem& waiting : round_) tokens += waiting.item.tokens;
  cost_meter_.round_ended(report, round_.size(), tokens, desk_.sequencer().ledger().load());
}

void Leader::describe(RegisterPool& pool) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, worker] : joined_) {
    pool.workers.at(static_cast<std::size_t>(rank)) = worker;
  }
  desk_.describe(pool);
}

Heartbeat Leader::heartbeat() const {
  using std::chrono::duration_cast;
  Heartbeat heartbeat;
  const Time now = clock_.now();
  const auto heard = inbox_.heard(now);
  std::vector<wire::Beat> beats;
  const std::lock_guard lock(mutex_);
  for (std::size_t r = 0; r < heard.size(); ++r) {
    beats.push_back(heard[r].beat);
    const PagePool& pages = desk_.sequencer().ledger().pools()[r];
    heartbeat.workers.push_back(
        {.rank = static_cast<int>(r),
         .pages_used = pages.used(),
         .pages_reserved = pages.reserved(),
         .pages_idle = pages.idle(),
         .homes = desk_.sequencer().ledger().load().workers()[r].homes,
         .heartbeat_age_ms = duration_cast<milliseconds>(heard[r].age).count(),
         .left = departures_.has_left(static_cast<int>(r))});
  }
  meter_.fill(heartbeat, beats, now);
  desk_.fill(heartbeat);
  heartbeat.metrics.cost_factors = cost_meter_.factors();
  return heartbeat;
}

}  // namespace tributary
