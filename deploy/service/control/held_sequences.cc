#include "deploy/service/control/held_sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.h"

namespace tributary {
namespace {

std::string ended_message(SequenceId id, SequenceEnd end) {
  switch (end) {
    case SequenceEnd::kFreed:
      return fmt::format("sequence {} was freed", id);
    case SequenceEnd::kLeaseExpired:
      return fmt::format("sequence {} was freed: its lease ran out", id);
    case SequenceEnd::kPoolLost:
      return fmt::format("sequence {} is gone with its pool", id);
  }
  return fmt::format("sequence {} has ended", id);
}

}  // namespace

HeldSequences::HeldSequences(const Clock& clock, PoolRegistry& registry,
                             std::chrono::milliseconds timeout, Admissions::CallPool call_pool)
    : clock_(clock),
      registry_(registry),
      timeout_(timeout),
      call_pool_(std::move(call_pool)),
      start_(clock.now()) {}

void HeldSequences::fail_unknown(SequenceId id) const {
  if (registry_.may_be_registered(id, start_, clock_.now())) {
    fail(ErrorCode::kUnavailable,
         "sequence {}: not known to this control plane, which has just started; its pool may still "
         "register",
         id);
  }
  fail(ErrorCode::kNotFound, "sequence {}: not known", id);
}

Status HeldSequences::out_of_sight(SequenceId id) const {
  const std::string* holder = registry_.pool_of(id);
  const Pool* pool = holder == nullptr ? nullptr : registry_.find(*holder);
  if (pool == nullptr || pool->state != PoolState::kLost) return {};
  return {ErrorCode::kUnavailable,
          fmt::format("sequence {}: its pool {} is lost from sight, and may come back: {}", id,
                      *holder, pool->lost_because)};
}

void HeldSequences::query(SequenceId id,
                          std::function<void(const Status&, const SequenceHandle&)> done) {
  const std::string* holder = registry_.pool_of(id);
  if (holder == nullptr) {
    const auto end = registry_.end_of(id);
    if (!end) fail_unknown(id);
    throw Error(*end == SequenceEnd::kPoolLost ? ErrorCode::kPoolLost : ErrorCode::kNotFound,
                ended_message(id, *end));
  }
  out_of_sight(id).throw_if_error();
  call_pool_(*holder, Query{0, id}, clock_.now() + timeout_,
             [this, id, done = std::move(done), pool = *holder](const PoolReply& reply) {
               const Pool* known = registry_.find(pool);
               if (reply.code == ErrorCode::kOk && reply.sequence && known != nullptr &&
                   is_of_pool(*reply.sequence, known->about)) {
                 done({}, make_handle(known->about, *reply.sequence));
               } else if (reply.code == ErrorCode::kOk) {
                 done({ErrorCode::kInternal, "the pool answered without the sequence"}, {});
               } else {
                 if (reply.code == ErrorCode::kNotFound) {
                   registry_.end_sequence(id, SequenceEnd::kFreed, clock_.now());
                 }
                 const Status unseen = out_of_sight(id);
                 done(unseen.ok() ? Status(reply.code, reply.message) : unseen, {});
               }
             });
}

void HeldSequences::free(SequenceId id, const std::string& pool,
                         std::function<void(const Status&)> done) {
  const std::string* holder = registry_.pool_of(id);
  if (holder == nullptr) {
    // A registered pool has said which sequences it holds, and this one is not among them.
    const Pool* known = registry_.find(pool);
    const bool is_here = known != nullptr && known->state != PoolState::kLost;
    if (!is_here && !registry_.end_of(id)) fail_unknown(id);
    return done({});
  }
  call_pool_(*holder, Free{0, id}, clock_.now() + timeout_,
             [this, id, done = std::move(done)](const PoolReply& reply) {
               switch (reply.code) {
                 case ErrorCode::kOk:
                 case ErrorCode::kNotFound:
                 case ErrorCode::kPoolLost:  // its pages are gone as well, or end with its lease
                   registry_.end_sequence(id, SequenceEnd::kFreed, clock_.now());
                   return done({});
                 default:
                   return done({reply.code, reply.message});
               }
             });
}

}  // namespace tributary
