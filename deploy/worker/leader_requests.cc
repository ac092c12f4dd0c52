// What the leader makes of each request.
#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "core/base/error.h"
#include "deploy/worker/leader.h"

namespace tributary {
namespace {

/// A client that has its last rows acknowledged by one worker may be faster than that worker's word
/// to the leader; one that has not sent all waits so long for its error.
constexpr auto kReadyGrace = std::chrono::milliseconds(50);
constexpr std::size_t kMaxHeld = 1024;

}  // namespace

void Leader::receive() {
  const Time now = Deadline::Clock::now();
  for (const LeaderMail::Progress& mail : mail_.progress) {
    book_.progress(mail.progress);
    leases_.touch(mail.progress.sequence_id, mail.arrival);
  }
  for (const LeaderMail::Forward& mail : mail_.forwards) receive_forward(mail);
  for (Waiting& held : std::exchange(held_, {})) receive_item(std::move(held));
  for (const LeaderMail::Items& mail : mail_.items) receive_items(mail);
  for (const ToPool& request : mail_.requests) receive_request(request);
  if (mail_.stop && !stop_at_) {
    draining_ = true;
    stop_at_ = now + config_.drain_timeout;
  }
}

void Leader::receive_items(const LeaderMail::Items& mail) {
  for (std::uint32_t i = 0; i < mail.items.items.size(); ++i) {
    receive_item({.rank = mail.rank,
                  .ticket = mail.items.ticket,
                  .index = i,
                  .arrival = mail.arrival,
                  .deadline = mail.arrival + std::chrono::microseconds(mail.items.deadline_us),
                  .item = mail.items.items[i]});
  }
}

void Leader::receive_item(Waiting waiting) {
  const wire::RoundItem& item = waiting.item;
  leases_.touch(item.sequence_id, waiting.arrival);
  const Sequence* s = find(item.sequence_id);
  StepBook::Decision decision = book_.decide(item, s);
  if (decision.outcome.ok() && s->home != waiting.rank) {
    decision.outcome = {ErrorCode::kFailedPrecondition,
                        fmt::format("worker {} is not the home of sequence {:#x}: worker {} is",
                                    waiting.rank, s->id, s->home)};
  }
  if (decision.outcome.ok()) {
    const Status status = status_of([&] {
      if (decision.commit) commit(item.sequence_id, *decision.commit);
      if (!decision.open) return;
      const Sequencer::StepRequest step{item.sequence_id, item.tokens};
      sequencer_.open_step(std::span(&step, 1));
      book_.opened(item.sequence_id, item.base_length, item.tokens, waiting.arrival);
    });
    decision.outcome = {status.code(), status.message()};
  }
  if (decision.filling && held_.size() < kMaxHeld &&
      Deadline::Clock::now() < waiting.arrival + kReadyGrace) {
    held_.push_back(std::move(waiting));
    return;
  }
  if (!decision.outcome.ok()) {
    refuse(waiting, decision.outcome);
    return;
  }
  book_.set_waiting(item.sequence_id, true);
  waiting_.push_back(std::move(waiting));
}

void Leader::receive_forward(const LeaderMail::Forward& mail) {
  wire::ForwardReply reply{.ticket = mail.forward.ticket, .items = {}, .message = {}};
  for (const wire::ControlItem& item : mail.forward.items) {
    const wire::Outcome outcome = control(item);
    const Sequence* s = find(item.sequence_id);
    reply.items.push_back({.code = outcome.code,
                           .epoch = s != nullptr ? s->epoch : 0,
                           .length = s != nullptr ? s->length : 0});
    if (!outcome.ok() && reply.message.empty()) reply.message = outcome.message;
  }
  answers_.emplace_back(mail.rank, std::move(reply));
}

wire::Outcome Leader::control(const wire::ControlItem& item) {
  leases_.touch(item.sequence_id, Deadline::Clock::now());
  const StepBook::Decision decision = book_.decide(item, find(item.sequence_id));
  if (!decision.outcome.ok()) return decision.outcome;
  const Status status = status_of([&] {
    if (decision.commit) {
      if (*decision.commit == 0) {
        drop_waiting(item.sequence_id, {ErrorCode::kFailedPrecondition, "the step was aborted"});
      }
      commit(item.sequence_id, *decision.commit);
    }
    if (item.op == wire::ControlOp::kTruncate) sequencer_.truncate(item.sequence_id, item.length);
  });
  return {status.code(), status.message()};
}

void Leader::commit(SequenceId id, std::int32_t accepted) {
  sequencer_.commit(id, accepted);
  const Time opened = book_.closed(id);
  if (accepted == 0) {
    ++metrics_.aborted_steps;
    return;
  }
  ++metrics_.steps;
  metrics_.tokens += static_cast<std::uint64_t>(accepted);
  metrics_.step_seconds.observe(
      std::chrono::duration<double>(Deadline::Clock::now() - opened).count());
}

void Leader::receive_request(const ToPool& request) {
  if (const auto* wanted = std::get_if<Admit>(&request)) {
    admit(*wanted);
  } else if (const auto* free = std::get_if<Free>(&request)) {
    if (!book_.contains(free->id)) {
      reply(free->request,
            {ErrorCode::kNotFound, fmt::format("sequence {:#x}: not here", free->id)});
      return;
    }
    end_sequence(free->id, ErrorCode::kNotFound, "the sequence was freed");
    ++metrics_.freed;
    // Its pages may be given again to what asks after this answer.
    words_after_order_.emplace_back(
        PoolReply{.request = free->request, .code = ErrorCode::kOk, .message = {}, .sequence = {}});
  } else if (const auto* query = std::get_if<Query>(&request)) {
    const Sequence* s = find(query->id);
    if (s == nullptr) {
      reply(query->request,
            {ErrorCode::kNotFound, fmt::format("sequence {:#x}: not here", query->id)});
    } else {
      reply(query->request, {}, info(*s));
    }
  } else if (const auto* set = std::get_if<SetDraining>(&request)) {
    draining_ = set->draining || stop_at_.has_value();
    reply(set->request, {});
  }
}

void Leader::admit(const Admit& request) {
  const Sequence* known = find(request.id);
  if (known != nullptr) {
    const bool same = !request.idempotency_key.empty() &&
                      request.idempotency_key == book_.idempotency_key(request.id);
    if (same) {
      reply(request.request, {}, info(*known));
    } else {
      reply(request.request,
            {ErrorCode::kAlreadyExists, fmt::format("sequence {:#x} exists", request.id)});
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
    id = sequencer_.admit({.tag = static_cast<std::int64_t>(request.id),
                           .prompt_tokens = request.prompt_tokens,
                           .max_new_tokens = request.max_new_tokens,
                           .spread = request.spread,
                           .id = request.id,
                           .pushed = true});
    if (!id)
      fail(ErrorCode::kPoolFull, "no room for {} tokens now",
           request.prompt_tokens + request.max_new_tokens);
  });
  if (!status.ok()) {
    reply(request.request, {status.code(), status.message()});
    return;
  }
  const Sequence& s = sequencer_.table().at(*id);
  book_.add(s, request.idempotency_key);
  leases_.add(*id, Deadline::Clock::now());
  last_incarnation_ = std::max(last_incarnation_, static_cast<std::uint32_t>(*id >> 32));
  ++metrics_.admitted;
  order_due_ = true;
  words_after_order_.emplace_back(PoolReply{
      .request = request.request, .code = ErrorCode::kOk, .message = {}, .sequence = info(s)});
}

void Leader::end_leases() {
  const Time now = Deadline::Clock::now();
  while (const auto id = leases_.expired(now)) {
    end_sequence(*id, ErrorCode::kNotFound, "the sequence's lease has expired");
    ++metrics_.leases_expired;
    words_.emplace_back(SequenceEnded{.id = *id, .reason = "lease_expired"});
  }
}

void Leader::end_sequence(SequenceId id, ErrorCode code, const std::string& reason) {
  drop_waiting(id, {code, reason});
  if (sequencer_.open_tokens(id) > 0) commit(id, 0);
  sequencer_.close(id);
  book_.remove(id);
  leases_.remove(id);
  order_due_ = true;
}

void Leader::refuse(const Waiting& waiting, const wire::Outcome& outcome) {
  ++metrics_.refused_items;
  if (!refusals_.empty()) {
    auto& [rank, last] = refusals_.back();
    if (rank == waiting.rank && last.ticket == waiting.ticket && last.outcome == outcome) {
      last.items.push_back(waiting.index);
      return;
    }
  }
  refusals_.emplace_back(
      waiting.rank,
      wire::ItemsRefused{.ticket = waiting.ticket, .items = {waiting.index}, .outcome = outcome});
}

void Leader::drop_waiting(SequenceId id, const wire::Outcome& outcome) {
  if (!book_.waiting(id)) return;
  const auto found = std::ranges::find_if(
      waiting_, [id](const Waiting& waiting) { return waiting.item.sequence_id == id; });
  if (found == waiting_.end()) return;
  refuse(*found, outcome);
  waiting_.erase(found);
  book_.set_waiting(id, false);
}

void Leader::reply(std::uint64_t request, const wire::Outcome& outcome,
                   std::optional<SequenceInfo> sequence) {
  words_.emplace_back(PoolReply{.request = request,
                                .code = outcome.code,
                                .message = outcome.message,
                                .sequence = std::move(sequence)});
}

}  // namespace tributary
