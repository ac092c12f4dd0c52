#include "deploy/service/control/pool_links.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>
#include <utility>
#include <variant>

#include "deploy/service/control/admissions.h"
#include "deploy/service/protocol/patience.h"

namespace tributary {

namespace {

/// The bound on a message. Reading a MiB holds the loop for some 40 ms. A registration of more than
/// some 5,000 workers is refused; a heartbeat grows with the pool's workers.
constexpr std::size_t kMaxMessageBytes = std::size_t{1} << 20;
constexpr std::size_t kBytesOfWorker = 512;

/// A message takes ten times its size while it is read, which the allocator would keep.
void give_back_memory() noexcept {
#if defined(__GLIBC__)
  (void)malloc_trim(0);
#endif
}

}  // namespace

PoolLinks::PoolLinks(const Clock& clock, PoolRegistry& registry, const Config& config,
                     OnRegistered on_registered, ControlLog log)
    : clock_(clock),
      registry_(registry),
      config_(config),
      on_registered_(std::move(on_registered)),
      log_(std::move(log)),
      stalls_(kWatchPeriod, clock.now()) {}

void PoolLinks::accept(std::shared_ptr<WebSocket> socket) {
  const std::uint64_t number = next_number_++;
  socket->set_handlers({[this, number](std::string_view text) { receive(number, text); },
                        [this, number](const Status& reason) { end(number, reason); }});
  links_.emplace(number, Link{std::move(socket), {}, clock_.now()});
}

void PoolLinks::receive(std::uint64_t number, std::string_view text) {
  const auto from = links_.find(number);
  if (from == links_.end()) return;  // dropped, but not closed yet
  // It lives: it is to register again, and to say which sequences it still has.
  if (is_silent(number, from->second.pool)) return drop(number);
  try {
    check_bytes(from->second, text.size());
    FromPool message = parse_from_pool(text);
    std::visit([&](auto& which) { handle(number, std::move(which)); }, message);
  } catch (const Error& error) {
    refuse(number, error);
  }
  if (text.size() > kMaxMessageBytes) give_back_memory();
}

void PoolLinks::check_bytes(Link& link, std::size_t bytes) const {
  const Pool* pool = registry_.find(link.pool);
  const std::size_t workers = pool == nullptr ? 0 : pool->about.workers.size();
  const std::size_t most = kMaxMessageBytes + kBytesOfWorker * workers;
  if (bytes > most) {
    fail(ErrorCode::kTooLarge, "a message of {} bytes; it may have {}", bytes, most);
  }
  if (!link.pool.empty()) return;
  link.heard = clock_.now();
  link.registration_bytes += bytes;
  if (link.registration_bytes > kMaxRegistrationBytes) {
    fail(ErrorCode::kTooLarge, "a registration of more than {} bytes", kMaxRegistrationBytes);
  }
}

void PoolLinks::refuse(std::uint64_t number, const Error& error) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  Link& link = found->second;
  if (link.pool.empty()) {
    ++refused_;
    const std::string line = refused_pools_.note(link.socket->remote(), error.what(), clock_.now());
    if (!line.empty()) warn("{}", line);
    link.socket->send(to_json(ToPool(Registered{.code = error.code(), .message = error.what()})));
    drop(number);
  } else {
    end(number, {error.code(), error.what()});
  }
}

const std::string& PoolLinks::pool_of(std::uint64_t number) const {
  const Link& link = links_.at(number);
  if (link.pool.empty()) {
    fail(ErrorCode::kMalformedInput, "a pool's first message is its registration");
  }
  return link.pool;
}

void PoolLinks::handle(std::uint64_t number, RegisterPool message) {
  Link& link = links_.at(number);
  if (!link.pool.empty() || link.arriving) {
    fail(ErrorCode::kMalformedInput, "pool {} registers twice", message.name);
  }
  if (message.more == 0) return register_pool(number, std::move(message));
  registry_.expect(message, clock_.now() + config_.registration_timeout);
  link.arriving = std::move(message);
}

void PoolLinks::handle(std::uint64_t number, MoreSequences message) {
  Link& link = links_.at(number);
  if (!link.arriving) fail(ErrorCode::kMalformedInput, "sequences outside of a registration");
  RegisterPool& pool = *link.arriving;
  for (SequenceInfo& sequence : message.sequences) {
    if (!is_of_pool(sequence, pool)) {
      fail(ErrorCode::kMalformedInput, "sequence {} names a worker beyond the pool's {}",
           sequence.id, pool.workers.size());
    }
    pool.sequences.push_back(std::move(sequence));
  }
  if (--pool.more > 0) return registry_.expect(pool, clock_.now() + config_.registration_timeout);
  RegisterPool whole = std::move(pool);
  link.arriving.reset();
  register_pool(number, std::move(whole));
  give_back_memory();
}

void PoolLinks::register_pool(std::uint64_t number, RegisterPool pool) {
  Link& link = links_.at(number);
  const std::string name = pool.name;
  const std::vector<SequenceInfo> sequences = pool.sequences;
  const std::size_t workers = pool.workers.size();
  registry_.register_pool(std::move(pool), clock_.now());
  link.pool = name;
  ++registered_;
  // The same run came on a new connection, before the end of the old one was noticed.
  if (const auto old = number_of_pool_.find(name); old != number_of_pool_.end()) {
    const std::uint64_t replaced = old->second;
    number_of_pool_.erase(old);
    drop(replaced);
    calls_.fail_pool(name, {ErrorCode::kUnavailable, fmt::format("pool {} connected anew", name)});
  }
  number_of_pool_[name] = number;
  link.socket->send(to_json(ToPool(Registered{
      .code = ErrorCode::kOk, .message = {}, .incarnation = registry_.ids().incarnation()})));
  log_(LogLevel::kInfo, fmt::format("pool {} registered from {}: {} workers, {} sequences", name,
                                    link.socket->remote(), workers, sequences.size()));
  on_registered_(name, sequences);
}

void PoolLinks::handle(std::uint64_t number, Heartbeat message) {
  registry_.heartbeat(pool_of(number), std::move(message), clock_.now());
}

void PoolLinks::handle(std::uint64_t number, const PoolReply& message) {
  const std::string pool = pool_of(number);
  if (calls_.answer(pool, message)) return;
  // A late answer: its admission has ended, so no client knows the sequence.
  if (message.code == ErrorCode::kOk && message.sequence &&
      registry_.pool_of(message.sequence->id) == nullptr) {
    warn("pool {} admitted sequence {} too late: freeing it", pool, message.sequence->id);
    call(pool, Free{0, message.sequence->id}, clock_.now() + config_.pool_timeout,
         [](const PoolReply&) {});
  }
}

void PoolLinks::handle(std::uint64_t number, const SequenceEnded& message) {
  const std::string* holder = registry_.pool_of(message.id);
  if (holder == nullptr || *holder != pool_of(number)) return;
  registry_.end_sequence(
      message.id,
      message.reason == "lease_expired" ? SequenceEnd::kLeaseExpired : SequenceEnd::kFreed,
      clock_.now());
}

void PoolLinks::handle(std::uint64_t number, WorkerJoined message) {
  const std::string& pool = pool_of(number);
  log_(LogLevel::kInfo, fmt::format("pool {}: another process is its worker {} now, at {}", pool,
                                    message.worker.rank, message.worker.address));
  registry_.worker_joined(pool, std::move(message.worker));
}

void PoolLinks::handle(std::uint64_t number, const Goodbye& /*message*/) {
  const std::string pool = pool_of(number);
  if (const auto* known = registry_.find(pool); known != nullptr && !known->sequences.empty()) {
    return lose(pool, "it has said that it ends");
  }
  log_(LogLevel::kInfo, fmt::format("pool {} has ended as planned, without sequences", pool));
  number_of_pool_.erase(pool);
  registry_.forget(pool, clock_.now());
  drop(number);
  calls_.fail_pool(pool, {ErrorCode::kUnavailable, fmt::format("pool {} has ended", pool)});
}

bool PoolLinks::is_silent(std::uint64_t number, const std::string& pool) const {
  const auto current = number_of_pool_.find(pool);
  return !pool.empty() && (current == number_of_pool_.end() || current->second != number);
}

void PoolLinks::end(std::uint64_t number, const Status& because) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  const std::string pool = found->second.pool;
  const Time now = clock_.now();
  // Pools give a control plane up that is held up for long, and connect anew.
  notice_stall(now);
  const bool is_silence =
      because.code() == ErrorCode::kDeadlineExceeded || now < resumed_ + config_.pool_timeout;
  const bool silent = is_silent(number, pool);
  if (!pool.empty() && !silent && is_silence) silence(pool, because.message());
  drop(number);
  if (pool.empty() || is_silence) return;
  if (!silent) return lose(pool, because.message());
  // A pool that has lost its connection, and lives, registers again within this time.
  if (!number_of_pool_.contains(pool))
    registry_.lose(pool, because.message(), now, now + kSettleTime);
}

void PoolLinks::lose(const std::string& pool, const std::string& because) {
  if (const auto found = number_of_pool_.find(pool); found != number_of_pool_.end()) {
    const std::uint64_t number = found->second;
    number_of_pool_.erase(found);
    drop(number);
  }
  const Pool* known = registry_.find(pool);
  warn("pool {} is lost, with {} sequences: {}", pool,
       known == nullptr ? 0 : known->sequences.size(), because);
  registry_.lose(pool, because, clock_.now());
  calls_.fail_pool(pool, {ErrorCode::kPoolLost, fmt::format("pool {} is lost: {}", pool, because)});
}

void PoolLinks::silence(const std::string& pool, const std::string& because) {
  number_of_pool_.erase(pool);
  const Time now = clock_.now();
  const Pool* known = registry_.find(pool);
  const Time heard = std::max(known == nullptr ? now : known->heard, resumed_);
  const auto patience = std::max(config_.pool_patience, config_.pool_timeout);
  warn("pool {} is lost from sight: {}; its {} sequences wait for it for {} ms", pool, because,
       known == nullptr ? 0 : known->sequences.size(), patience.count());
  registry_.lose(pool, because, now, heard + patience);
  calls_.fail_pool(pool, {ErrorCode::kPoolLost, fmt::format("pool {} is lost: {}", pool, because)});
}

void PoolLinks::drop(std::uint64_t number) {
  const auto found = links_.find(number);
  if (found == links_.end()) return;
  found->second.socket->close();  // after what is queued
  dropped_.push_back(std::move(found->second.socket));
  links_.erase(found);
}

PoolLinks::Link* PoolLinks::link_of(const std::string& pool) {
  const auto found = number_of_pool_.find(pool);
  return found == number_of_pool_.end() ? nullptr : &links_.at(found->second);
}

void PoolLinks::call(const std::string& pool, ToPool message, Time deadline, PoolCalls::Done done) {
  Link* link = link_of(pool);
  if (link == nullptr) {
    done({0, ErrorCode::kPoolLost, fmt::format("pool {} is lost", pool), {}});
    return;
  }
  set_request(message, calls_.open(pool, deadline, std::move(done)));
  link->socket->send(to_json(message));
}

void PoolLinks::notice_stall(Time now) {
  StallClock noticed = stalls_;
  const Duration stalled = noticed.tick(now);
  if (stalled.count() == 0) return;
  stalls_ = noticed;
  resumed_ = now;
  warn("held up for {} ms: what pools sent meanwhile is read before any is judged",
       std::chrono::duration_cast<std::chrono::milliseconds>(stalled).count());
  registry_.wait_longer(now, stalled);
}

void PoolLinks::watch() {
  dropped_.clear();
  const Time now = clock_.now();
  notice_stall(now);
  static_cast<void>(stalls_.tick(now));
  if (now < resumed_ + kWatchPeriod) return;
  // Silence counts from the time when we listened.
  const auto listened = now - stalls_.awake_since();
  if (listened >= config_.pool_timeout) {
    for (const std::string& pool : silent_pools(registry_, now - config_.pool_timeout)) {
      silence(pool, fmt::format("no heartbeat for {} ms", config_.pool_timeout.count()));
    }
    for (const std::string& pool : registry_.lose_silent(now)) {
      warn("pool {} has not come back: its sequences are lost", pool);
    }
  }
  std::vector<std::uint64_t> unregistered;
  for (const auto& [number, link] : links_) {
    if (link.pool.empty() && std::min(now - link.heard, listened) > config_.registration_timeout) {
      unregistered.push_back(number);
    }
  }
  for (const std::uint64_t number : unregistered) {
    warn("{} did not register in time", links_.at(number).socket->remote());
    drop(number);
  }
  calls_.expire(now);
}

}  // namespace tributary
