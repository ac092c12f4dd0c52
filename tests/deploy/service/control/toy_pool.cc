// A pool as the control plane sees one, without a connection.
#include "tests/deploy/service/control/toy_pool.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "core/base/ceil_div.h"
#include "core/base/limits.h"
#include "core/cache/sequence_table.h"
#include "tests/deploy/service/protocol/pool_samples.h"

namespace tributary {

ToyPool::ToyPool(ToyPoolConfig config) : config_(std::move(config)) {
  if (config_.shape.heads == 0) config_.shape = sample_shape();
  for (const SequenceInfo& sequence : config_.sequences) sequences_[sequence.id] = sequence;
}

RegisterPool ToyPool::about() const {
  RegisterPool about;
  about.protocol = config_.protocol;
  about.name = config_.name;
  about.run = config_.run;
  about.shape = config_.shape;
  about.pages_per_worker = config_.pages_per_worker;
  about.lease_ms = 30'000;
  about.draining = draining_;
  about.last_incarnation = config_.last_incarnation;
  for (int rank = 0; rank < config_.workers; ++rank) {
    about.workers.push_back(
        {rank, "host", "tcp://127.0.0.1:" + std::to_string(5000 + rank), "cpu test"});
    if (const auto newer = addresses_.find(rank); newer != addresses_.end()) {
      about.workers.back().address = newer->second;
    }
  }
  for (const auto& [id, sequence] : sequences_) about.sequences.push_back(sequence);
  return about;
}

WorkerJoined ToyPool::take_in(int worker, const std::string& address) {
  lost_.erase(worker);
  addresses_[worker] = address;
  return {about().workers.at(static_cast<std::size_t>(worker))};
}

PoolReply ToyPool::answer(const ToPool& asked) {
  if (const auto* wanted = std::get_if<Admit>(&asked)) return admit(*wanted);
  PoolReply answered;
  if (const auto* free = std::get_if<Free>(&asked)) {
    answered.request = free->request;
    if (!end(free->id)) answered.code = ErrorCode::kNotFound;
  } else if (const auto* query = std::get_if<Query>(&asked)) {
    answered.request = query->request;
    const auto found = sequences_.find(query->id);
    if (found == sequences_.end()) {
      answered.code = ErrorCode::kNotFound;
      answered.message = "sequence " + id_text(query->id) + ": not in this pool";
    } else {
      answered.sequence = found->second;
    }
  } else if (const auto* draining = std::get_if<SetDraining>(&asked)) {
    answered.request = draining->request;
    draining_ = draining->draining;
  } else if (const auto* one = std::get_if<DrainWorker>(&asked)) {
    answered.request = one->request;
    if (one->draining && drained_workers_.size() + 1 == std::size_t(config_.workers)) {
      answered.code = ErrorCode::kFailedPrecondition;
      answered.message = "the last one";
    } else if (one->draining) {
      drained_workers_.insert(one->worker);
    } else {
      drained_workers_.erase(one->worker);
    }
  }
  return answered;
}

int ToyPool::free_pages() const {
  std::int64_t free = std::int64_t{config_.workers} * config_.pages_per_worker;
  for (const auto& [id, sequence] : sequences_) {
    free -= ceil_div(sequence.prompt_tokens + sequence.max_new_tokens, kPageTokens);
  }
  return static_cast<int>(free);
}

PoolReply ToyPool::admit(const Admit& admit) {
  PoolReply reply;
  reply.request = admit.request;
  if (draining_) {
    reply.code = ErrorCode::kFailedPrecondition;
    reply.message = "draining";
    return reply;
  }
  if (ceil_div(admit.wanted.prompt_tokens + admit.wanted.max_new_tokens, kPageTokens) >
      free_pages()) {
    reply.code = ErrorCode::kPoolFull;
    reply.message = "full";
    return reply;
  }
  SequenceInfo sequence;
  sequence.id = admit.id;
  sequence.token.fill(7);
  sequence.epoch = 1;
  sequence.prompt_tokens = admit.wanted.prompt_tokens;
  sequence.max_new_tokens = admit.wanted.max_new_tokens;
  if (admit.wanted.prompt_tokens > 0) sequence.extents = {{0, admit.wanted.prompt_tokens, 0}};
  sequence.idempotency_key = admit.wanted.idempotency_key;
  sequence.idempotency_secret = admit.wanted.idempotency_secret;
  sequence.missing = "everything";
  sequences_[admit.id] = sequence;
  config_.last_incarnation =
      std::max(config_.last_incarnation, static_cast<std::uint32_t>(admit.id >> 32));
  reply.sequence = sequence;
  return reply;
}

/// Counts the work of a tenth of a second: 10 rounds of 4 steps of 2 ms.
void ToyPool::count_work() {
  for (int i = 0; i < 10; ++i) {
    metrics_.rounds += 1;
    metrics_.steps += 4;
    metrics_.tokens += 4;
    metrics_.exchanged_bytes += 400'000;
    metrics_.ingested_bytes += 100'000;
    metrics_.batch.observe(4);
    metrics_.step_seconds.observe(2e-3 + 1e-3 * i);
    metrics_.round_seconds.observe(1e-3);
    double seconds = 2e-5;
    for (auto& phase : metrics_.phase_seconds) phase.observe(seconds *= 1.6);
  }
  metrics_.balance = 1.04;
  metrics_.canaries += 1;
  metrics_.canary_error = 1.5e-3;
}

Heartbeat ToyPool::beat() {
  Heartbeat heartbeat;
  heartbeat.draining = draining_;
  const int used = config_.workers * config_.pages_per_worker - free_pages();
  for (int rank = 0; rank < config_.workers; ++rank) {
    heartbeat.workers.push_back({.rank = rank,
                                 .pages_used = used / config_.workers,
                                 .heartbeat_age_ms = 10,
                                 .draining = drained_workers_.contains(rank),
                                 .lost = lost_.contains(rank)});
  }
  count_work();
  metrics_.filling = static_cast<std::int64_t>(sequences_.size());
  heartbeat.metrics = metrics_;
  return heartbeat;
}

}  // namespace tributary
