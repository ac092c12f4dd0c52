// A pool as the control plane sees one.
#include "tests/deploy/service/control/simulated_pool.h"

#include <future>
#include <utility>
#include <variant>

#include "core/base/ceil_div.h"
#include "core/base/limits.h"
#include "core/cache/sequence_table.h"
#include "tests/deploy/service/protocol/pool_samples.h"

namespace tributary {

using std::chrono::milliseconds;

namespace {

constexpr auto kPatience = std::chrono::seconds(20);

}  // namespace

SimulatedPool::SimulatedPool(const SimulatedPoolConfig& config) : config_(config) {
  if (config_.shape.heads == 0) config_.shape = sample_shape();
  for (const SequenceInfo& sequence : config_.sequences) sequences_[sequence.id] = sequence;
  WebSocketClientConfig client;
  client.url = parse_url("http://" + config_.control + "/v1/pools/connect");
  client.timeout = client.idle_timeout = kPatience;
  if (!config_.token.empty()) client.headers = {{"Authorization", "Bearer " + config_.token}};
  loop_.post([this, client] {
    connect_websocket(loop_, client,
                      [this](std::shared_ptr<WebSocket> socket, const Status& status) {
                        connected(std::move(socket), status);
                      });
  });
  thread_ = std::thread([this] { loop_.run(); });
}

SimulatedPool::~SimulatedPool() {
  loop_.stop();
  thread_.join();
}

void SimulatedPool::connected(std::shared_ptr<WebSocket> socket, const Status& status) {
  if (!socket) return settle({status.code(), status.message(), 0});
  socket_ = std::move(socket);
  socket_->set_handlers({[this](std::string_view text) { receive(text); },
                         [this](const Status& reason) {
                           beats_.reset();
                           settle({reason.code(), reason.message(), 0});
                         }});
  RegisterPool about;
  about.protocol = config_.protocol;
  about.name = config_.name;
  about.run = config_.run;
  about.shape = config_.shape;
  about.pages_per_worker = config_.pages_per_worker;
  about.lease_ms = 30'000;
  about.last_incarnation = config_.last_incarnation;
  for (int rank = 0; rank < config_.workers; ++rank) {
    about.workers.push_back(
        {rank, "host", "tcp://127.0.0.1:" + std::to_string(5000 + rank), "cpu test"});
  }
  about.sequences = sequences();
  for (const FromPool& word : registration(about)) socket_->send(to_json(word));
}

void SimulatedPool::settle(Registered outcome) {
  const std::lock_guard lock(mutex_);
  if (!outcome_) outcome_ = std::move(outcome);
  changed_.notify_all();
}

void SimulatedPool::receive(std::string_view text) {
  const ToPool message = parse_to_pool(text);
  if (const auto* registered = std::get_if<Registered>(&message)) {
    if (registered->code == ErrorCode::kOk) {
      beat();
      beats_ = loop_.every(milliseconds(100), [this] { beat(); });
    }
    return settle(*registered);
  }
  PoolReply answered;
  if (const auto* admit = std::get_if<Admit>(&message)) {
    answered = answer(*admit);
  } else {
    const std::lock_guard lock(mutex_);
    if (const auto* free = std::get_if<Free>(&message)) {
      answered.request = free->request;
      if (sequences_.erase(free->id) == 0) answered.code = ErrorCode::kNotFound;
    } else if (const auto* query = std::get_if<Query>(&message)) {
      answered.request = query->request;
      const auto found = sequences_.find(query->id);
      if (found == sequences_.end()) {
        answered.code = ErrorCode::kNotFound;
        answered.message = "sequence " + id_text(query->id) + ": not in this pool";
      } else {
        answered.sequence = found->second;
      }
    } else if (const auto* draining = std::get_if<SetDraining>(&message)) {
      answered.request = draining->request;
      draining_ = draining->draining;
    } else if (const auto* one = std::get_if<DrainWorker>(&message)) {
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
    changed_.notify_all();
  }
  if (stalled_) {
    held_back_.push_back(answered);
  } else {
    reply(answered);
  }
}

void SimulatedPool::reply(const PoolReply& reply) {
  socket_->send(to_json(FromPool(reply)));
}

int SimulatedPool::free_pages() const {
  std::int64_t free = std::int64_t{config_.workers} * config_.pages_per_worker;
  for (const auto& [id, sequence] : sequences_) {
    free -= ceil_div(sequence.prompt_tokens + sequence.max_new_tokens, kPageTokens);
  }
  return static_cast<int>(free);
}

PoolReply SimulatedPool::answer(const Admit& admit) {
  const std::lock_guard lock(mutex_);
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
  sequence.missing = "everything";
  sequences_[admit.id] = sequence;
  reply.sequence = sequence;
  changed_.notify_all();
  return reply;
}

/// Counts the work of a tenth of a second: 10 rounds of 4 steps of 2 ms.
void SimulatedPool::count_work() {
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

void SimulatedPool::beat() {
  if (silent_) return;
  Heartbeat heartbeat;
  {
    const std::lock_guard lock(mutex_);
    heartbeat.draining = draining_;
    const int used = config_.workers * config_.pages_per_worker - free_pages();
    for (int rank = 0; rank < config_.workers; ++rank) {
      heartbeat.workers.push_back({.rank = rank,
                                   .pages_used = used / config_.workers,
                                   .heartbeat_age_ms = 10,
                                   .draining = drained_workers_.contains(rank)});
    }
    ++beaten_;
    count_work();
    metrics_.filling = static_cast<std::int64_t>(sequences_.size());
    heartbeat.metrics = metrics_;
  }
  socket_->send(to_json(FromPool(heartbeat)));
  changed_.notify_all();
}

bool SimulatedPool::wait_for_beats(int count) {
  std::unique_lock lock(mutex_);
  const int before = beaten_;
  return changed_.wait_for(lock, kPatience, [&] { return beaten_ >= before + count; });
}

Registered SimulatedPool::wait_registered() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, kPatience, [this] { return outcome_.has_value(); })) {
    fail(ErrorCode::kDeadlineExceeded, "the control plane did not answer a registration");
  }
  return *outcome_;
}

bool SimulatedPool::wait_for(
    const std::function<bool(const std::map<SequenceId, SequenceInfo>&)>& holds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kPatience, [&] { return holds(sequences_); });
}

std::vector<SequenceInfo> SimulatedPool::sequences() {
  const std::lock_guard lock(mutex_);
  std::vector<SequenceInfo> list;
  for (const auto& [id, sequence] : sequences_) list.push_back(sequence);
  return list;
}

bool SimulatedPool::draining() {
  const std::lock_guard lock(mutex_);
  return draining_;
}

void SimulatedPool::stall(bool stalled) {
  std::promise<void> done;
  loop_.post([&] {
    stalled_ = stalled;
    if (!stalled) {
      for (const PoolReply& held : held_back_) reply(held);
      held_back_.clear();
    }
    done.set_value();
  });
  done.get_future().wait();
}

void SimulatedPool::silence(bool silent) {
  std::promise<void> done;
  loop_.post([&] {
    silent_ = silent;
    done.set_value();
  });
  done.get_future().wait();
}

void SimulatedPool::expire(SequenceId id) {
  {
    const std::lock_guard lock(mutex_);
    sequences_.erase(id);
  }
  send(to_json(FromPool(SequenceEnded{id, "lease_expired"})));
}

void SimulatedPool::send(const std::string& text) {
  loop_.post([this, text] { socket_->send(text); });
}

SimulatedPoolConfig pool_of(const ControlHarness& control, const std::string& name) {
  SimulatedPoolConfig config;
  config.control = control.address();
  config.name = name;
  return config;
}

}  // namespace tributary
