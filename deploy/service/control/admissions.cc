#include "deploy/service/control/admissions.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "comm/wire/mac.h"

namespace tributary {

struct Admissions::Pending {
  AdmitRequest request;
  Time deadline;
  std::vector<std::string> pools;  // to ask
  std::size_t next = 0;
  bool some_full = false;
  bool all_too_large = true;
  Status last;
  Done done;
};

bool is_of_pool(const SequenceInfo& sequence, const RegisterPool& pool) noexcept {
  const auto own = [&](int rank) { return std::cmp_less(rank, pool.workers.size()) && rank >= 0; };
  const auto own_or_none = [&](int rank) { return own(rank) || rank == kNoWorker; };
  return own(sequence.home) && std::ranges::all_of(sequence.lost_workers, own) &&
         std::ranges::all_of(sequence.extents, own_or_none, &Extent::rank) &&
         std::ranges::all_of(sequence.lost, own_or_none, &Extent::rank);
}

SequenceHandle make_handle(const RegisterPool& pool, const SequenceInfo& sequence) {
  SequenceHandle handle;
  static_cast<SequenceInfo&>(handle) = sequence;
  handle.idempotency_key.clear();
  handle.idempotency_secret.clear();
  handle.pool = pool.name;
  handle.lease_ms = pool.lease_ms;
  handle.shape = pool.shape;
  handle.addresses.reserve(pool.workers.size());
  for (const WorkerInfo& worker : pool.workers) handle.addresses.push_back(worker.address);
  return handle;
}

namespace {

/// The answer holds the token of the sequence's owner, and keys can be guessed.
bool proves_itself(const AdmitRequest& repeat, const AdmitRequest& first) {
  const auto bytes = [](const std::string& text) {
    return std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  };
  return !first.idempotency_secret.empty() &&
         wire::same_bytes(bytes(repeat.idempotency_secret), bytes(first.idempotency_secret));
}

}  // namespace

Admissions::Admissions(const Clock& clock, PoolRegistry& registry, const Config& config,
                       CallPool call_pool)
    : clock_(clock),
      registry_(registry),
      config_(config),
      call_pool_(std::move(call_pool)),
      start_(clock.now()) {
  // Keys of pending admissions are never forgotten: there must be room for more than those.
  config_.max_keys = std::max(config_.max_keys, config_.max_pending + 2);
}

AdmissionResult Admissions::refusal(ErrorCode code, std::string message) const {
  AdmissionResult result;
  result.status = Status(code, std::move(message));
  if (code == ErrorCode::kPoolFull) {
    result.retry_after_s = retry_after_seconds(registry_, start_, clock_.now());
  }
  return result;
}

AdmissionResult Admissions::admitted(const std::string& pool, const SequenceInfo& sequence) const {
  AdmissionResult result;
  result.sequence = make_handle(registry_.find(pool)->about, sequence);
  return result;
}

void Admissions::forget_old() {
  const Time now = clock_.now();
  while (!key_order_.empty() && key_order_.front().since + config_.key_lifetime <= now) {
    const Mark& oldest = key_order_.front();
    const auto found = keyed_.find(oldest.key);
    if (found != keyed_.end() && found->second.mark == oldest.mark) {
      if (found->second.sequence.id == 0) return;  // pending: somebody waits for it
      keyed_.erase(found);
    }
    key_order_.pop_front();
  }
}

Admissions::Keyed& Admissions::remember(const std::string& key) {
  Keyed& entry = keyed_[key];
  entry = Keyed{};
  entry.mark = next_mark_++;
  key_order_.push_back({key, entry.mark, clock_.now()});
  // There are up to twice as many marks as keys: marks of replaced and withdrawn entries are
  // skipped here.
  while (keyed_.size() > config_.max_keys || key_order_.size() > 2 * config_.max_keys) {
    const Mark oldest = std::move(key_order_.front());
    key_order_.pop_front();
    const auto found = keyed_.find(oldest.key);
    if (found == keyed_.end() || found->second.mark != oldest.mark) continue;
    if (found->second.sequence.id == 0) {
      key_order_.push_back(oldest);  // pending: a client waits for it
    } else {
      keyed_.erase(found);
    }
  }
  return entry;
}

bool Admissions::answer_by_key(const AdmitRequest& request, Done& done) {
  const auto found = keyed_.find(request.idempotency_key);
  if (found == keyed_.end()) return false;
  Keyed& entry = found->second;
  const std::string* pool = registry_.pool_of(entry.sequence.id);
  const bool is_pending = entry.sequence.id == 0;
  if (!is_pending && (pool == nullptr || *pool != entry.pool)) {
    keyed_.erase(found);  // its sequence has ended: the key is free again
    return false;
  }
  const bool same = proves_itself(request, entry.request) &&
                    entry.request.prompt_tokens == request.prompt_tokens &&
                    entry.request.max_new_tokens == request.max_new_tokens &&
                    (!entry.all_known || (entry.request.spread == request.spread &&
                                          entry.request.parent == request.parent));
  if (!same) {
    done(refusal(ErrorCode::kAlreadyExists,
                 fmt::format("idempotency key '{}' came with another request, or without the "
                             "secret of the first one",
                             request.idempotency_key)));
  } else if (!is_pending) {
    ++repeated_;
    done(admitted(entry.pool, entry.sequence));
  } else if (entry.waiting.size() >= config_.max_pending) {
    done(refusal(ErrorCode::kPoolFull, "too many requests wait for one admission"));
  } else {
    ++repeated_;
    entry.waiting.push_back(std::move(done));
  }
  return true;
}

void Admissions::admit(const AdmitRequest& request, Done done) {
  forget_old();
  if (!request.idempotency_key.empty() && answer_by_key(request, done)) return;
  auto pending = std::make_shared<Pending>();
  pending->request = request;
  pending->deadline = clock_.now() + config_.timeout;
  pending->done = std::move(done);
  ++pending_;
  if (!request.idempotency_key.empty()) {
    AdmitRequest& known = remember(request.idempotency_key).request;
    known = request;
    known.prefix = {};  // a repeat is one by key and secret; a hundred kilobytes each would add up
  }
  if (pending_ > config_.max_pending) {
    finish(pending, refusal(ErrorCode::kPoolFull, fmt::format("{} admissions are pending, the most",
                                                              config_.max_pending)));
    return;
  }
  try {
    check_parent(request.parent.id);
    pending->pools = pools_to_ask(registry_, request);
  } catch (const Error& error) {
    finish(pending, refusal(error.code(), error.what()));
    return;
  }
  ask_next(pending);
}

/// A sequence to begin with, if any.
void Admissions::check_parent(SequenceId id) const {
  if (id == 0 || registry_.pool_of(id) != nullptr || registry_.end_of(id)) return;
  if (!registry_.may_be_registered(id, start_, clock_.now())) return;
  fail(ErrorCode::kUnavailable,
       "fork of sequence {}: not known to this control plane, which has just started; its pool may "
       "still register",
       id);
}

void Admissions::ask_next(const std::shared_ptr<Pending>& pending) {
  while (pending->next < pending->pools.size()) {
    const std::string& name = pending->pools[pending->next++];
    const Pool* pool = registry_.find(name);
    if (pool == nullptr || pool->state != PoolState::kServing) continue;
    const AdmitRequest& request = pending->request;
    const std::int64_t pages = pages_of(request.prompt_tokens, request.max_new_tokens);
    if (!pool->could_register_with(pages)) {
      pending->some_full = true;
      continue;
    }
    // Every pool that is asked gets a new id: a pool that is lost now may come back with the
    // sequence.
    const SequenceId id = registry_.ids().next();
    registry_.ask_pages(name, pages);
    call_pool_(name, Admit{.request = 0, .id = id, .wanted = request}, pending->deadline,
               [this, pending, name, id, pages](const PoolReply& reply) {
                 if (registry_.find(name) != nullptr) registry_.ask_pages(name, -pages);
                 take(pending, name, id, reply);
               });
    return;
  }
  if (pending->some_full) {
    finish(pending, refusal(ErrorCode::kPoolFull, "every pool that could hold it is full"));
  } else if (pending->last.code() == ErrorCode::kTooLarge && pending->all_too_large) {
    finish(pending, refusal(ErrorCode::kTooLarge, pending->last.message()));
  } else {
    finish(pending, refusal(ErrorCode::kUnavailable,
                            fmt::format("no pool serves any more{}{}",
                                        pending->last.ok() ? "" : ": ", pending->last.message())));
  }
}

void Admissions::take(const std::shared_ptr<Pending>& pending, const std::string& pool,
                      SequenceId id, const PoolReply& reply) {
  switch (reply.code) {
    case ErrorCode::kOk:
      break;
    case ErrorCode::kPoolFull:
      pending->some_full = true;
      [[fallthrough]];
    case ErrorCode::kTooLarge:
    case ErrorCode::kFailedPrecondition:  // it drains, and has not told us yet
    case ErrorCode::kUnavailable:
    case ErrorCode::kPoolLost:
      if (pending->request.parent.id != 0 && reply.code != ErrorCode::kPoolFull) {
        finish(pending, refusal(reply.code, reply.message));  // no other pool has its parent
        return;
      }
      pending->last = Status(reply.code, reply.message);
      if (reply.code != ErrorCode::kTooLarge) pending->all_too_large = false;
      ask_next(pending);
      return;
    default:
      finish(pending, refusal(reply.code, reply.message));
      return;
  }
  const Pool* holder = registry_.find(pool);
  const AdmitRequest& wanted = pending->request;
  if (!reply.sequence || reply.sequence->id != id || holder == nullptr ||
      holder->state == PoolState::kLost || !is_of_pool(*reply.sequence, holder->about) ||
      reply.sequence->prompt_tokens != wanted.prompt_tokens ||
      reply.sequence->max_new_tokens != wanted.max_new_tokens) {
    finish(
        pending,
        refusal(ErrorCode::kInternal,
                fmt::format("pool {} answered an admission without its sequence, or with workers "
                            "that it does not have",
                            pool)));
    // Nobody will use a sequence that the pool may hold.
    call_pool_(pool, Free{0, id}, pending->deadline, [](const PoolReply&) {});
    return;
  }
  registry_.add_sequence(pool, id, pages_of(wanted.prompt_tokens, wanted.max_new_tokens));
  finish(pending, admitted(pool, *reply.sequence));
}

void Admissions::finish(const std::shared_ptr<Pending>& pending, const AdmissionResult& result) {
  --pending_;
  ++results_[static_cast<std::size_t>(result.status.code())];
  std::vector<Done> waiting;
  if (const auto found = keyed_.find(pending->request.idempotency_key); found != keyed_.end()) {
    waiting = std::move(found->second.waiting);
    if (result.status.ok()) {
      found->second.pool = result.sequence.pool;
      found->second.sequence = static_cast<const SequenceInfo&>(result.sequence);
    } else {
      keyed_.erase(found);  // a retry starts anew
    }
  }
  pending->done(result);
  for (const Done& done : waiting) done(result);
}

void Admissions::restore(const std::string& pool, const std::vector<SequenceInfo>& sequences) {
  for (const SequenceInfo& sequence : sequences) {
    const std::string& key = sequence.idempotency_key;
    if (key.empty()) continue;
    const auto found = keyed_.find(key);
    // The first answer that a client may have got under this key stays the answer.
    if (found != keyed_.end() && (found->second.sequence.id == 0 ||
                                  registry_.pool_of(found->second.sequence.id) != nullptr)) {
      continue;
    }
    Keyed& entry = remember(key);
    entry.request = {sequence.prompt_tokens, sequence.max_new_tokens, SpreadPolicy::kAuto, key,
                     sequence.idempotency_secret};
    entry.all_known = false;
    entry.pool = pool;
    entry.sequence = sequence;
  }
}

}  // namespace tributary
