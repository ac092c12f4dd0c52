#include "deploy/service/worker/leader/request_desk.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/wire/access_token.h"
#include "comm/wire/mac.h"
#include "core/base/error.h"
#include "core/base/limits.h"

namespace tributary {
namespace {

/// A client whose last rows one worker has acknowledged may be faster than that worker's message to
/// the leader. A client that has not sent all rows waits this long for its error.
constexpr auto kReadyGrace = std::chrono::milliseconds(50);
constexpr std::size_t kMaxHeld = 1024;
/// A look at all sequences that found nothing to give away is repeated after this.
constexpr auto kGiveAwayPause = std::chrono::milliseconds(20);
/// Held items are checked this often, even if no message arrives.
constexpr auto kHeldPoll = std::chrono::milliseconds(5);

}  // namespace

RequestDesk::RequestDesk(const LeaderConfig& config, LeaderOutbox& outbox, PoolMeter& meter)
    : config_(config),
      outbox_(outbox),
      meter_(meter),
      sequencer_(config.sequencer),
      book_(config.sequencer.placement.model.layers, config.sequencer.placement.model.leaf_tokens),
      leases_(std::chrono::milliseconds(config.options.lease_ms)) {}

void RequestDesk::receive(const LeaderMail& mail, Time now) {
  for (const LeaderMail::Progress& word : mail.progress) {
    if (book_.progress(word.progress)) {
      sequencer_.sequences().prompt_arrived(word.progress.sequence_id);
    }
    leases_.touch(word.progress.sequence_id, word.arrival);
  }
  for (const LeaderMail::Relay& relay : mail.relays) receive_relay(relay, now);
  std::vector<WaitingItem> accepted;
  for (WaitingItem& held : std::exchange(held_, {})) {
    receive_item(std::move(held), now, accepted);
  }
  waiting_.insert(waiting_.end(), accepted.begin(), accepted.end());
  for (const LeaderMail::Items& items : mail.items) receive_items(items, now);
  partial_calls_.release(now, waiting_);
  for (const ToPool& request : mail.requests) receive_request(request, now);
  if (mail.stop && !stop_at_) {
    draining_ = true;
    stop_at_ = now + std::chrono::milliseconds(config_.options.drain_timeout_ms);
  }
}

/// A call whose items are split over rounds takes one round longer: as long as that, and no longer,
/// its first items wait for the rest. Other calls do not wait for them.
void RequestDesk::receive_items(const LeaderMail::Items& mail, Time now) {
  std::vector<WaitingItem> accepted;
  for (std::uint32_t i = 0; i < mail.items.items.size(); ++i) {
    if (mail.items.items[i].tokens == 0) continue;
    receive_item({.rank = mail.rank,
                  .ticket = mail.items.ticket,
                  .index = i,
                  .arrival = mail.arrival,
                  .deadline = mail.arrival + std::chrono::microseconds(mail.items.deadline_us),
                  .item = mail.items.items[i]},
                 now, accepted);
  }
  partial_calls_.add(mail.items.part, std::move(accepted), mail.arrival + round_duration_,
                     waiting_);
}

void RequestDesk::receive_item(WaitingItem waiting, Time now, std::vector<WaitingItem>& accepted) {
  const StepItem& item = waiting.item;
  leases_.touch(item.id, waiting.arrival);
  const Sequence* s = find(item.id);
  StepBook::Decision decision = book_.decide(item, s);
  if (decision.outcome.ok() && s->home != waiting.rank) {
    ++meter_.totals.refused_items;
    outbox_.moved(waiting.rank, waiting.ticket, waiting.index,
                  {ErrorCode::kFailedPrecondition,
                   fmt::format("worker {} is not the home of sequence {}: worker {} is",
                               waiting.rank, s->id, s->home)},
                  s->home);
    order_due_ = true;
    return;
  }
  if (decision.outcome.ok()) {
    const Status status = status_of([&] {
      if (decision.commit) commit(item.id, *decision.commit, now);
      if (!decision.open) return;
      sequencer_.steps().open(std::span(&item, 1));
      book_.opened(item, waiting.arrival);
    });
    decision.outcome = {status.code(), status.message()};
  }
  if (decision.filling && held_.size() < kMaxHeld && now < waiting.arrival + kReadyGrace) {
    held_.push_back(std::move(waiting));
    return;
  }
  if (!decision.outcome.ok()) {
    refuse(waiting, decision.outcome);
    return;
  }
  book_.set_waiting(item.id, true);
  accepted.push_back(std::move(waiting));
}

void RequestDesk::receive_relay(const LeaderMail::Relay& mail, Time now) {
  wire::ControlRelayReply reply{.ticket = mail.relay.ticket, .items = {}, .message = {}};
  bool ends = false;
  for (const wire::ControlItem& item : mail.relay.items) {
    const wire::Outcome outcome = control(item, now);
    const Sequence* s = find(item.sequence_id);
    reply.items.push_back({.code = outcome.code,
                           .epoch = s != nullptr ? s->epoch : 0,
                           .length = s != nullptr ? s->length : 0,
                           .home = s != nullptr ? s->home : -1});
    if (!outcome.ok() && reply.message.empty()) reply.message = outcome.message;
    ends = ends || (outcome.ok() && item.op == wire::ControlOp::kFree);
  }
  if (ends) {
    // After this answer the sequences' pages may be given to others.
    outbox_.answer_after_order(mail.rank, std::move(reply));
  } else {
    outbox_.answer(mail.rank, std::move(reply));
  }
}

wire::Outcome RequestDesk::control(const wire::ControlItem& item, Time now) {
  leases_.touch(item.sequence_id, now);
  const StepBook::Decision decision = book_.decide(item, find(item.sequence_id));
  if (!decision.outcome.ok()) return decision.outcome;
  const Status status = status_of([&] {
    if (decision.commit) {
      if (*decision.commit == 0) {
        drop_waiting(item.sequence_id, {ErrorCode::kFailedPrecondition, "the step was aborted"});
      }
      commit(item.sequence_id, *decision.commit, now);
    }
    if (item.op == wire::ControlOp::kTruncate)
      sequencer_.sequences().truncate(item.sequence_id, item.length);
    if (item.op == wire::ControlOp::kName) name_blocks(item);
    if (item.op == wire::ControlOp::kExtend) extend(item.sequence_id, item.length);
    if (item.op == wire::ControlOp::kFree) {
      free(item.sequence_id, now);
      outbox_.tell(SequenceEnded{.id = item.sequence_id, .reason = "freed"});
    }
  });
  return {status.code(), status.message()};
}

void RequestDesk::extend(SequenceId id, std::int64_t limit_tokens) {
  const std::int64_t before = find(id)->limit_tokens;
  if (!sequencer_.sequences().raise_limit(id, limit_tokens)) {
    fail(ErrorCode::kPoolFull, "no room now for {} more tokens of sequence {}",
         limit_tokens - before, id);
  }
}

void RequestDesk::name_blocks(const wire::ControlItem& item) {
  Prefix names{.block_tokens = item.names.block_tokens, .cache_salt = item.names.cache_salt};
  for (const wire::BlockNames::Key& key : item.names.keys) names.add_key(key.bytes);
  sequencer_.sequences().name_blocks(item.sequence_id, names, item.length);
}

void RequestDesk::free(SequenceId id, Time now) {
  end_sequence(id, ErrorCode::kNotFound, "the sequence was freed", now);
  ++meter_.totals.freed;
}

void RequestDesk::commit(SequenceId id, std::int32_t accepted, Time now) {
  sequencer_.steps().commit(id, accepted);
  const StepBook::Closed step = book_.closed(id, accepted > 0, now);
  PoolMetrics& totals = meter_.totals;
  if (accepted == 0) {
    ++totals.aborted_steps;
    return;
  }
  ++totals.steps;
  totals.tokens += static_cast<std::uint64_t>(accepted);
  totals.step_seconds.observe(seconds_between(step.opened, now));
  (step.first_commit ? totals.first_commit_seconds : totals.commit_interval_seconds)
      .observe(seconds_between(step.before, now));
}

void RequestDesk::receive_request(const ToPool& request, Time now) {
  if (const auto* wanted = std::get_if<Admit>(&request)) {
    admit(*wanted, now);
  } else if (const auto* free = std::get_if<Free>(&request)) {
    if (find(free->id) == nullptr) {
      reply(free->request, {ErrorCode::kNotFound, fmt::format("sequence {}: not here", free->id)});
      return;
    }
    this->free(free->id, now);
    // After this answer the sequence's pages may be given to another one.
    outbox_.tell_after_order(
        PoolReply{.request = free->request, .code = ErrorCode::kOk, .message = {}, .sequence = {}});
  } else if (const auto* query = std::get_if<Query>(&request)) {
    const Sequence* s = find(query->id);
    if (s == nullptr) {
      reply(query->request,
            {ErrorCode::kNotFound, fmt::format("sequence {}: not here", query->id)});
    } else {
      SequenceInfo found = info(*s);
      found.extents = holders(*s, s->length, sequencer_.ledger().table().leaf_tokens());
      PoolReply answer{
          .request = query->request, .code = ErrorCode::kOk, .message = {}, .sequence = found};
      // Rows that were lost may be pushed at once: their owners know of them by then.
      if (order_due_ && !found.lost.empty()) {
        outbox_.tell_after_order(std::move(answer));
      } else {
        outbox_.tell(std::move(answer));
      }
    }
  } else if (const auto* set = std::get_if<SetDraining>(&request)) {
    draining_ = set->draining || stop_at_.has_value();
    reply(set->request, {});
  } else if (const auto* one = std::get_if<DrainWorker>(&request)) {
    const Status status = status_of([&] { drain_worker(*one); });
    reply(one->request, {status.code(), status.message()});
  }
}

void RequestDesk::drain_worker(const DrainWorker& request) {
  if (request.draining && config_.sequencer.options.move_bytes_per_s == 0) {
    fail(ErrorCode::kFailedPrecondition,
         "worker {} would keep what it has: the pool moves nothing (--move-bytes-per-s 0)",
         request.worker);
  }
  const int workers = static_cast<int>(sequencer_.ledger().pools().size());
  int left = 0;
  for (int w = 0; w < workers; ++w) {
    if (w != request.worker && !sequencer_.ledger().draining(w)) ++left;
  }
  if (request.draining && left == 0) {
    fail(ErrorCode::kFailedPrecondition,
         "worker {} is the last of {} that takes sequences: drain the pool instead", request.worker,
         workers);
  }
  sequencer_.moves().drain_worker(request.worker, request.draining);
  order_due_ = true;
}

void RequestDesk::admit(const Admit& request, Time now) {
  const Sequence* known = find(request.id);
  if (known != nullptr) {
    const std::string& key = request.wanted.idempotency_key;
    const bool same = !key.empty() && key == book_.idempotency(request.id).key;
    if (!same) {
      reply(request.request,
            {ErrorCode::kAlreadyExists, fmt::format("sequence {} exists", request.id)});
    } else {
      admitted(request.request, *known);
    }
    return;
  }
  if (draining_) {
    reply(request.request, {ErrorCode::kUnavailable, "the pool is draining"});
    return;
  }
  std::optional<SequenceId> id;
  const Status status = status_of([&] {
    if (request.id == 0) fail(ErrorCode::kInvalidArgument, "sequence id is 0");
    if (const Parent& parent = request.wanted.parent; parent.id != 0) check_owner(parent);
    id = sequencer_.sequences().admit(
        request.wanted, {.tag = static_cast<std::int64_t>(request.id), .id = request.id});
    if (!id)
      fail(ErrorCode::kPoolFull, "no room for {} tokens now",
           request.wanted.prompt_tokens + request.wanted.max_new_tokens);
  });
  if (!status.ok()) {
    reply(request.request, {status.code(), status.message()});
    return;
  }
  const Sequence& s = sequencer_.ledger().table().at(*id);
  book_.add(s, {request.wanted.idempotency_key, request.wanted.idempotency_secret}, now);
  leases_.add(*id, now);
  last_incarnation_ = static_cast<std::uint32_t>(*id >> 32);
  ++meter_.totals.admitted;
  if (!request.wanted.prefix.keys.empty()) {
    meter_.totals.prefix_cache_queries += static_cast<std::uint64_t>(s.prompt_tokens);
    meter_.totals.prefix_cache_hits += static_cast<std::uint64_t>(s.present_tokens);
  }
  order_due_ = true;
  admitted(request.request, s);
}

/// Who forks a sequence reads its rows.
void RequestDesk::check_owner(const Parent& parent) const {
  const wire::Token token = wire::access_token(config_.pool_key, parent.id);
  if (wire::same_bytes(token, parent.token)) return;
  fail(ErrorCode::kPermissionDenied, "fork of sequence {} without its token", parent.id);
}

/// A client may push rows as soon as it has the answer: every worker knows the sequence by then.
void RequestDesk::admitted(std::uint64_t request, const Sequence& s) {
  PoolReply answer{.request = request, .code = ErrorCode::kOk, .message = {}, .sequence = info(s)};
  if (order_due_) {
    outbox_.tell_after_order(std::move(answer));
  } else {
    outbox_.tell(std::move(answer));
  }
}

void RequestDesk::end_leases(Time now) {
  while (const auto id = leases_.expired(now)) {
    end_sequence(*id, ErrorCode::kNotFound, "the sequence's lease has expired", now);
    ++meter_.totals.leases_expired;
    outbox_.tell(SequenceEnded{.id = *id, .reason = "lease_expired"});
  }
}

void RequestDesk::end_sequence(SequenceId id, ErrorCode code, const std::string& reason, Time now) {
  drop_waiting(id, {code, reason});
  if (sequencer_.steps().open_tokens(id) > 0) commit(id, 0, now);
  sequencer_.sequences().close(id);
  book_.remove(id);
  leases_.remove(id);
  order_due_ = true;
}

void RequestDesk::lose_worker(int rank, Time now) {
  drop_items_of(rank);
  const Loss loss = sequencer_.losses().lose_worker(rank);
  for (const SequenceId id : loss.steps) {
    drop_waiting(id, {ErrorCode::kWorkerLost,
                      fmt::format("sequence {}: its step ended with worker {}", id, rank)});
    (void)book_.closed(id, false, now);
    ++meter_.totals.aborted_steps;
  }
  book_.lose_worker(rank);
  for (const SequenceId id : loss.epochs) rows_change(id);
  // The time of the change counts towards no lease: homes may be unknown to their clients.
  for (const SequenceId id : book_.ids()) leases_.touch(id, now);
}

/// The leaves of a sequence that lack rows, or their owners, are others now.
void RequestDesk::rows_change(SequenceId id) {
  const std::vector<std::int32_t>& lost = sequencer_.ledger().running().at(id).lost;
  if (!lost.empty()) book_.lost(*find(id), lost);
}

/// Nobody waits for their answers any more.
void RequestDesk::drop_items_of(int home) {
  std::erase_if(held_, [&](const WaitingItem& held) { return held.rank == home; });
  std::vector<SequenceId> ids;
  for (const SequenceId id : book_.ids()) {
    if (find(id)->home == home && book_.waiting(id)) ids.push_back(id);
  }
  for (const SequenceId id : ids) {
    (void)partial_calls_.remove(id);
    std::erase_if(waiting_, [id](const WaitingItem& waiting) { return waiting.item.id == id; });
    book_.set_waiting(id, false);
  }
}

void RequestDesk::refuse(const WaitingItem& waiting, const wire::Outcome& outcome) {
  ++meter_.totals.refused_items;
  outbox_.refuse(waiting.rank, waiting.ticket, waiting.index, outcome);
}

void RequestDesk::drop_waiting(SequenceId id, const wire::Outcome& outcome) {
  if (!book_.waiting(id)) return;
  std::optional<WaitingItem> dropped = partial_calls_.remove(id);
  const auto found = std::ranges::find_if(
      waiting_, [id](const WaitingItem& waiting) { return waiting.item.id == id; });
  if (found != waiting_.end()) {
    dropped = std::move(*found);
    waiting_.erase(found);
  }
  if (!dropped) return;
  refuse(*dropped, outcome);
  book_.set_waiting(id, false);
}

void RequestDesk::reply(std::uint64_t request, const wire::Outcome& outcome,
                        std::optional<SequenceInfo> sequence) {
  outbox_.tell(PoolReply{.request = request,
                         .code = outcome.code,
                         .message = outcome.message,
                         .sequence = std::move(sequence)});
}

/// A sequence in an open step whose item has not come is worth a short wait: with it the round
/// costs little more.
bool RequestDesk::round_is_due(Time now) const {
  if (waiting_.empty()) return false;
  return waiting_.size() >=
             std::min(book_.open_steps(), static_cast<std::size_t>(config_.options.max_batch)) ||
         now >= waiting_.front().arrival + std::chrono::microseconds(config_.options.batch_wait_us);
}

void RequestDesk::take_round(Time now, std::vector<WaitingItem>& round) {
  round_begin_ = now;
  while (!waiting_.empty() && round.size() < static_cast<std::size_t>(config_.options.max_batch)) {
    WaitingItem next = std::move(waiting_.front());
    waiting_.pop_front();
    if (now >= next.deadline) {
      book_.set_waiting(next.item.id, false);
      refuse(next, {ErrorCode::kDeadlineExceeded, "no round began before the item's deadline"});
      continue;
    }
    meter_.totals.wait_seconds.observe(seconds_between(next.arrival, now));
    round.push_back(std::move(next));
  }
}

void RequestDesk::round_ended(std::span<const WaitingItem> round, const wire::Outcome& outcome,
                              Time now) {
  round_duration_ = now - round_begin_;
  for (const WaitingItem& waiting : round) {
    book_.set_waiting(waiting.item.id, false);
    if (outcome.ok()) {
      book_.ran(waiting.item);
    } else {
      refuse(waiting, outcome);
    }
  }
}

void RequestDesk::round_broke(std::span<const WaitingItem> round) {
  for (const WaitingItem& waiting : round) book_.set_waiting(waiting.item.id, false);
}

void RequestDesk::give_away(Time now) {
  for (const SequenceId id : sequencer_.losses().give_room()) {
    rows_change(id);
    order_due_ = true;
  }
  if (now < next_give_away_) return;
  const auto is_busy = [this](SequenceId id) { return book_.waiting(id); };
  if (sequencer_.give_away(is_busy)) {
    order_due_ = true;
  } else {
    next_give_away_ = now + kGiveAwayPause;
  }
}

Time RequestDesk::next_event(Time now) const {
  if (order_due_ || round_is_due(now)) return now;
  Time next = partial_calls_.next_event();
  if (!held_.empty()) next = std::min(next, now + kHeldPoll);
  if (!waiting_.empty())
    next = std::min(
        next, waiting_.front().arrival + std::chrono::microseconds(config_.options.batch_wait_us));
  if (const auto end = leases_.next_end()) next = std::min(next, *end);
  if (stop_at_) next = std::min(next, *stop_at_);
  return next;
}

const Sequence* RequestDesk::find(SequenceId id) const {
  return sequencer_.ledger().table().contains(id) ? &sequencer_.ledger().table().at(id) : nullptr;
}

/// Rows of a sequence that went with a worker, leaf by leaf, so that who sends one again cuts it
/// alike.
std::vector<Extent> RequestDesk::lost_rows(const Sequence& s) const {
  const std::int64_t leaf_tokens = sequencer_.ledger().table().leaf_tokens();
  std::vector<Extent> rows;
  for (const std::int32_t leaf : sequencer_.ledger().running().at(s.id).lost) {
    const std::int64_t begin = leaf * leaf_tokens;
    const int owner = s.leaves[static_cast<std::size_t>(leaf)].owner;
    rows.push_back({begin, std::min(begin + leaf_tokens, s.length), owner});
  }
  return rows;
}

std::vector<int> RequestDesk::lost_workers() const {
  std::vector<int> lost;
  for (int w = 0; std::cmp_less(w, sequencer_.ledger().pools().size()); ++w) {
    if (sequencer_.ledger().pages().lost(w)) lost.push_back(w);
  }
  return lost;
}

SequenceInfo RequestDesk::info(const Sequence& s) const {
  return {.id = s.id,
          .epoch = s.epoch,
          .state = book_.state(s.id),
          .home = s.home,
          .prompt_tokens = s.prompt_tokens,
          .max_new_tokens = s.limit_tokens - s.prompt_tokens,
          .present_tokens = s.present_tokens,
          .length = s.length,
          .extents = book_.extents(s.id),
          .lost = lost_rows(s),
          .lost_workers = lost_workers(),
          .token = wire::access_token(config_.pool_key, s.id),
          .idempotency_key = book_.idempotency(s.id).key,
          .idempotency_secret = book_.idempotency(s.id).secret,
          .missing = book_.missing(s.id)};
}

void RequestDesk::describe(RegisterPool& pool) const {
  pool.draining = draining_;
  pool.last_incarnation = last_incarnation_;
  pool.sequences.clear();
  for (const SequenceId id : book_.ids()) {
    pool.sequences.push_back(info(sequencer_.ledger().table().at(id)));
    pool.sequences.back().lost.clear();  // asked for where they are needed
  }
}

void RequestDesk::fill(Heartbeat& heartbeat) const {
  heartbeat.draining = draining_;
  for (Heartbeat::Worker& worker : heartbeat.workers) {
    worker.lost = sequencer_.ledger().pages().lost(worker.rank);
    worker.draining = !worker.lost && sequencer_.ledger().draining(worker.rank);
  }
  heartbeat.metrics.filling = static_cast<std::int64_t>(book_.filling());
  heartbeat.metrics.stepping = static_cast<std::int64_t>(book_.open_steps());
  heartbeat.metrics.ready = static_cast<std::int64_t>(book_.size()) - heartbeat.metrics.filling -
                            heartbeat.metrics.stepping;
  const LeafMoves::Totals& moves = sequencer_.moves().totals();
  heartbeat.metrics.moves = moves.completed;
  heartbeat.metrics.cancelled_moves = moves.cancelled;
  heartbeat.metrics.moved_bytes = moves.page_copies * kPageTokens * config_.attention().row_bytes();
}

}  // namespace tributary
