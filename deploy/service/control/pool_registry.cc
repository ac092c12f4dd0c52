#include "deploy/service/control/pool_registry.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <limits>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/dtype.h"
#include "core/base/limits.h"
#include "core/placement/placement.h"
#include "deploy/service/control/run_name.h"
#include "deploy/service/protocol/patience.h"

namespace tributary {
std::string_view pool_state_name(PoolState state) noexcept {
  switch (state) {
    case PoolState::kServing:
      return "serving";
    case PoolState::kDraining:
      return "draining";
    case PoolState::kLost:
      return "lost";
  }
  return "unknown";
}

std::int64_t Pool::total_pages() const noexcept {
  return std::int64_t{about.pages_per_worker} * static_cast<std::int64_t>(about.workers.size());
}

std::int64_t Pool::free_pages() const noexcept {
  std::int64_t pages = total_pages() - pages_asked - pages_admitted;
  if (heartbeat) {
    for (const auto& worker : heartbeat->workers) {
      pages -= worker.draining || worker.lost
                   ? std::int64_t{about.pages_per_worker}
                   : std::int64_t{worker.pages_used} + worker.pages_reserved;
    }
  }
  return std::max<std::int64_t>(pages, 0);
}

bool Pool::could_register_with(std::int64_t pages) const noexcept {
  // Those that were asked for are sequences of a page at least; an extent has a page of its own.
  const auto most = static_cast<std::int64_t>(sequences.size()) + pages_asked + 1;
  return most_registration_bytes(most, total_pages() - free_pages() + pages) <=
         static_cast<std::int64_t>(kMaxRegistrationBytes);
}

void SequenceIds::pass(std::uint32_t other) noexcept {
  if (static_cast<std::int32_t>(incarnation_ - other) > 0) return;
  incarnation_ = std::max(other + 1, 1U);
  counter_ = 0;
}

SequenceId SequenceIds::next() noexcept {
  if (counter_ == std::numeric_limits<std::uint32_t>::max()) pass(incarnation_);
  return (SequenceId{incarnation_} << 32) | ++counter_;
}

std::uint32_t incarnation_at(std::chrono::system_clock::time_point now) {
  using std::chrono::milliseconds;
  constexpr std::int64_t kEpochMs = 1'704'067'200'000;  // 2024-01-01T00:00:00Z in Unix time
  const std::int64_t unix_ms =
      std::chrono::duration_cast<milliseconds>(now.time_since_epoch()).count();
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(
      (unix_ms - kEpochMs) / 250, 1, std::numeric_limits<std::uint32_t>::max()));
}

Pool& PoolRegistry::at(const std::string& name) {
  const auto found = pools_.find(name);
  if (found == pools_.end()) fail(ErrorCode::kNotFound, "pool {}: not registered", name);
  return found->second;
}

const Pool* PoolRegistry::find(const std::string& name) const {
  const auto found = pools_.find(name);
  return found == pools_.end() ? nullptr : &found->second;
}

/// One tier serves one model: a client may be sent to any of its pools.
void PoolRegistry::check_shape(const RegisterPool& about) const {
  for (const auto& [name, pool] : pools_) {
    if (pool.state == PoolState::kLost || name == about.name) continue;
    if (const auto difference = find_difference(about.shape, pool.about.shape)) {
      fail(ErrorCode::kInvalidArgument,
           "pool {}: {} is {}, but pool {} of this tier has {}: one tier serves one model",
           about.name, difference->field, difference->first, name, difference->second);
    }
    return;  // the pools of the tier are alike
  }
}

void PoolRegistry::make_room(const std::string& name, Time now) {
  if (pools_.contains(name) || pools_.size() < kMaxPools) return;
  auto oldest = pools_.end();
  for (auto pool = pools_.begin(); pool != pools_.end(); ++pool) {
    if (pool->second.state == PoolState::kLost &&
        (oldest == pools_.end() || pool->second.since < oldest->second.since)) {
      oldest = pool;
    }
  }
  if (oldest == pools_.end()) {
    fail(ErrorCode::kPoolFull, "pool {}: the tier has {} pools, its most", name, kMaxPools);
  }
  give_up(oldest->second, now);
  pools_.erase(oldest);
}

void PoolRegistry::register_pool(RegisterPool about, Time now) {
  const auto old = pools_.find(about.name);
  const bool known = old != pools_.end();
  const bool same_run = known && old->second.about.run == about.run;
  if (known && !same_run && old->second.state != PoolState::kLost) {
    fail(ErrorCode::kAlreadyExists,
         "pool {}: another run of it serves (registered as run {}, not {}); stop that or choose "
         "another name",
         about.name, run_name(old->second.about.run), run_name(about.run));
  }
  check_shape(about);
  // Throws for values with which no sequence could be placed.
  static_cast<void>(Placement({.workers = static_cast<int>(about.workers.size()),
                               .model = default_cost_model(about.shape.leaf_tokens)}));
  for (const SequenceInfo& sequence : about.sequences) {
    const std::string* holder = pool_of(sequence.id);
    if (holder != nullptr && *holder != about.name) {
      fail(ErrorCode::kAlreadyExists, "pool {}: sequence {} is one of pool {}", about.name,
           sequence.id, *holder);
    }
  }
  make_room(about.name, now);
  const auto pass = [&](std::uint32_t brought) {
    // A pool that comes back with our own number has it from us.
    if (brought != 0 && (brought != ids_.incarnation() || !same_run)) ids_.pass(brought);
  };
  pass(about.last_incarnation);
  for (const SequenceInfo& sequence : about.sequences) {
    pass(static_cast<std::uint32_t>(sequence.id >> 32));
  }

  // Sequences that the same run does not bring again have ended meanwhile.
  if (known && !same_run) give_up(old->second, now);
  if (known) end_all(old->second, SequenceEnd::kFreed, now);
  auto former = same_run ? std::move(old->second.former_addresses) : std::deque<std::string>();
  const auto place = pools_.insert_or_assign(about.name, Pool{}).first;
  Pool& pool = place->second;
  pool.former_addresses = std::move(former);
  pool.state = about.draining ? PoolState::kDraining : PoolState::kServing;
  pool.since = pool.heard = now;
  for (const SequenceInfo& sequence : about.sequences) {
    pool.sequences.insert(sequence.id);
    pool_of_[sequence.id] = &place->first;
    ended_.erase(sequence.id);
    // Until its first heartbeat the pool is as full as its sequences make it.
    pool.pages_admitted += pages_of(sequence.prompt_tokens, sequence.max_new_tokens);
  }
  about.sequences.clear();
  pool.about = std::move(about);
}

void PoolRegistry::expect(const RegisterPool& about, Time until) {
  expected_until_ = std::max(expected_until_, until);
  const auto known = pools_.find(about.name);
  if (known == pools_.end() || known->second.about.run != about.run) return;
  known->second.gone_at = std::max(known->second.gone_at, until);
}

void PoolRegistry::end_all(Pool& pool, SequenceEnd reason, Time now) {
  for (const SequenceId id : pool.sequences) {
    pool_of_.erase(id);
    ended_.add(id, reason);
    note_end(now);
  }
  pool.sequences.clear();
}

bool PoolRegistry::may_be_registered(SequenceId id, Time start, Time now) const {
  const bool of_another = id >> 32 > 0 && !ids_.gave(id);
  return of_another && now < std::max(start + kSettleTime, expected_until_);
}

void PoolRegistry::heartbeat(const std::string& name, Heartbeat heartbeat, Time now) {
  Pool& pool = at(name);
  if (heartbeat.workers.size() != pool.about.workers.size()) {
    fail(ErrorCode::kMalformedInput, "heartbeat of {} workers; pool {} registered with {}",
         heartbeat.workers.size(), name, pool.about.workers.size());
  }
  set_draining(name, heartbeat.draining, now);
  pool.heartbeat = std::move(heartbeat);
  pool.heard = now;
  pool.pages_admitted = 0;
}

void PoolRegistry::set_draining(const std::string& name, bool draining, Time now) {
  Pool& pool = at(name);
  const PoolState state = draining ? PoolState::kDraining : PoolState::kServing;
  if (pool.state == PoolState::kLost || pool.state == state) return;
  pool.state = state;
  pool.since = now;
}

void PoolRegistry::worker_joined(const std::string& name, WorkerInfo worker) {
  Pool& pool = at(name);
  if (worker.rank < 0 || std::cmp_greater_equal(worker.rank, pool.about.workers.size())) {
    fail(ErrorCode::kMalformedInput, "worker {} has joined pool {}, which registered with {}",
         worker.rank, name, pool.about.workers.size());
  }
  WorkerInfo& place = pool.about.workers[static_cast<std::size_t>(worker.rank)];
  const bool known = std::ranges::count(pool.former_addresses, place.address) > 0;
  if (!known && place.address != worker.address) pool.former_addresses.push_back(place.address);
  if (pool.former_addresses.size() > kMaxFormer) pool.former_addresses.pop_front();
  place = std::move(worker);
}

void PoolRegistry::lose(const std::string& name, std::string because, Time now,
                        std::optional<Time> gone_at) {
  const auto found = pools_.find(name);
  if (found == pools_.end()) return;
  Pool& pool = found->second;
  if (pool.state == PoolState::kLost) {
    if (gone_at) pool.gone_at = std::min(pool.gone_at, *gone_at);
    return;
  }
  pool.state = PoolState::kLost;
  pool.since = now;
  pool.lost_because = std::move(because);
  if (gone_at) {
    pool.gone_at = *gone_at;
  } else {
    give_up(pool, now);
  }
}

void PoolRegistry::give_up(Pool& pool, Time now) {
  if (std::exchange(pool.gone, true)) return;
  ++ends_.pools_lost;
  end_all(pool, SequenceEnd::kPoolLost, now);
}

void PoolRegistry::forget(const std::string& name, Time now) {
  const auto found = pools_.find(name);
  if (found == pools_.end()) return;
  end_all(found->second, SequenceEnd::kFreed, now);
  pools_.erase(found);
}

void PoolRegistry::wait_longer(Time now, Duration stalled) {
  for (auto& [name, pool] : pools_) {
    if (pool.state == PoolState::kLost && pool.since <= now - stalled) pool.gone_at += stalled;
  }
}

std::vector<std::string> PoolRegistry::lose_silent(Time now) {
  std::vector<std::string> gone;
  for (auto& [name, pool] : pools_) {
    if (pool.state != PoolState::kLost || pool.gone || now < pool.gone_at) continue;
    give_up(pool, now);
    gone.push_back(name);
  }
  return gone;
}

void PoolRegistry::add_sequence(const std::string& pool, SequenceId id, std::int64_t pages) {
  const auto found = pools_.find(pool);
  if (found == pools_.end() || found->second.state == PoolState::kLost) {
    fail(ErrorCode::kPoolLost, "pool {} of sequence {} is lost", pool, id);
  }
  found->second.sequences.insert(id);
  found->second.pages_admitted += pages;
  pool_of_[id] = &found->first;
}

void PoolRegistry::end_sequence(SequenceId id, SequenceEnd reason, Time now) {
  const auto found = pool_of_.find(id);
  if (found == pool_of_.end()) return;
  at(*found->second).sequences.erase(id);
  pool_of_.erase(found);
  ended_.add(id, reason);
  note_end(now);
}

void PoolRegistry::note_end(Time now) {
  ends_.times.push_back(now);
  if (ends_.times.size() > kEndTimes) ends_.times.pop_front();
}

void PoolRegistry::ask_pages(const std::string& pool, std::int64_t pages) {
  Pool& asked = at(pool);
  asked.pages_asked = std::max<std::int64_t>(asked.pages_asked + pages, 0);
}

const std::string* PoolRegistry::pool_of(SequenceId id) const {
  const auto found = pool_of_.find(id);
  return found == pool_of_.end() ? nullptr : found->second;
}

std::vector<std::string> silent_pools(const PoolRegistry& registry, Time since) {
  std::vector<std::string> names;
  for (const auto& [name, pool] : registry.pools()) {
    if (pool.state != PoolState::kLost && pool.heard < since) names.push_back(name);
  }
  return names;
}

std::size_t sequences_of(const PoolRegistry& registry) noexcept {
  std::size_t sequences = 0;
  for (const auto& [name, pool] : registry.pools()) sequences += pool.sequences.size();
  return sequences;
}

bool any_serving(const PoolRegistry& registry) {
  return std::ranges::any_of(registry.pools(), [](const auto& entry) {
    return entry.second.state == PoolState::kServing;
  });
}

std::int64_t pages_of(std::int64_t prompt_tokens, std::int64_t max_new_tokens) noexcept {
  return ceil_div(prompt_tokens + max_new_tokens, kPageTokens);
}

std::vector<std::string> worker_addresses(const PoolRegistry& registry) {
  std::vector<std::string> addresses;
  for (const auto& [name, pool] : registry.pools()) {
    for (const WorkerInfo& worker : pool.about.workers) addresses.push_back(worker.address);
    std::ranges::copy(pool.former_addresses, std::back_inserter(addresses));
  }
  return addresses;
}

}  // namespace tributary
