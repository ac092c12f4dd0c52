// A control plane's decisions and its pools in simulated time.
#include "tests/deploy/service/control/simulated_tier.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "deploy/service/protocol/patience.h"

namespace tributary {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

constexpr milliseconds kDelay{1};  // of a message
constexpr milliseconds kBeat{500};
constexpr milliseconds kFirstRetry{100};
constexpr seconds kConnectTimeout{2};
constexpr seconds kPoolsPatience{5};  // with a silent connection
constexpr seconds kLease{30};

}  // namespace

void SimulatedProcess::run(std::function<void()> work) {
  if (!stopped_) return work();
  waiting_.push_back(std::move(work));
}

void SimulatedProcess::run_first(std::function<void()> work) {
  if (!stopped_) return work();
  waiting_.push_front(std::move(work));
}

void SimulatedProcess::stop(Duration duration) {
  if (stopped_) return;
  stopped_ = true;
  stopped_for_ += duration;
  clock_.after(duration, [this] { go_on(); });
}

void SimulatedProcess::go_on() {
  stopped_ = false;
  for (auto& work : std::exchange(waiting_, {})) work();
}

/// One connection, as both sides hold it.
struct TierPool::Connection {
  WebSocketHandlers control;  // empty once its side is gone
  bool opened = false;        // the pool knows that it is
  Time heard;                 // by the control plane: a message, or a pong

  void end(const Status& reason) {
    const auto handlers = std::exchange(control, {});
    if (handlers.closed) handlers.closed(reason);
  }
};

/// The control plane's side.
class TierPool::Socket final : public WebSocket {
 public:
  Socket(TierPool& pool, std::shared_ptr<Connection> connection)
      : pool_(pool), connection_(std::move(connection)), remote_("10.0.0.1:4000") {}
  ~Socket() override { close(); }
  void set_handlers(WebSocketHandlers handlers) override {
    connection_->control = std::move(handlers);
  }
  void send(std::string text) override {
    if (closed_) return;
    pool_.pass([pool = &pool_, connection = connection_, text = std::move(text)] {
      pool->process.run([=] {
        if (pool->connection_ == connection) pool->receive(text);
      });
    });
  }
  void close() override {
    if (std::exchange(closed_, true)) return;
    connection_->control = {};
    pool_.pass([pool = &pool_, connection = connection_] {
      pool->process.run([=] {
        if (pool->connection_ == connection) pool->lost();
      });
    });
  }
  [[nodiscard]] const std::string& remote() const noexcept override { return remote_; }

 private:
  TierPool& pool_;
  std::shared_ptr<Connection> connection_;
  std::string remote_;
  bool closed_ = false;
};

TierPool::TierPool(SimulatedTier& tier, ToyPoolConfig config)
    : model(config), process(tier.clock), tier_(tier), name_(config.name), wait_(kFirstRetry) {
  connect();
  tick();
}

void TierPool::pass(std::function<void()> arrival) {
  tier_.clock.after(kDelay, [this, arrival = std::move(arrival)] {
    if (cut_) {
      cut_off_.push_back(arrival);
    } else {
      tier_.arrive(arrival);
    }
  });
}

void TierPool::cut(Duration duration) {
  if (std::exchange(cut_, true)) return;
  tier_.clock.after(duration, [this] {
    cut_ = false;
    for (auto& arrival : std::exchange(cut_off_, {})) tier_.arrive(arrival);
  });
}

void TierPool::connect() {
  if (dead_ || connection_) return;
  heard_ = tier_.clock.now();
  const auto connection = connection_ = std::make_shared<Connection>();
  pass([this, connection] {
    tier_.process.run([=, this] {
      connection->heard = tier_.clock.now();
      tier_.control->links.accept(std::make_shared<Socket>(*this, connection));
      pass([=, this] {
        process.run([=, this] {
          if (connection_ != connection) return;
          connection->opened = true;
          for (const FromPool& word : registration(model.about())) send(word);
        });
      });
    });
  });
  tier_.clock.after(kConnectTimeout, [this, connection] {
    process.run([=, this] {
      if (connection_ == connection && !connection->opened) drop("gave up");
    });
  });
}

void TierPool::lost() {
  connection_.reset();
  registered_ = false;
  tier_.clock.after(wait_, [this] { process.run([this] { connect(); }); });
  wait_ = std::min<Duration>(2 * wait_, kPoolRetry);
}

void TierPool::drop(std::string reason) {
  const auto connection = connection_;
  pass([this, connection, reason = std::move(reason)] {
    tier_.process.run([=] { connection->end({ErrorCode::kIo, reason}); });
  });
  lost();
}

void TierPool::kill() {
  if (dead_) return;
  if (connection_) drop("Connection reset by peer");
  dead_ = true;
}

void TierPool::send(const FromPool& word) {
  if (!connection_ || !connection_->opened) return;
  pass([this, connection = connection_, text = to_json(word)] {
    tier_.process.run([=, this] {
      connection->heard = tier_.clock.now();
      // The handler may end the connection.
      if (const auto message = connection->control.message) message(text);
    });
  });
}

void TierPool::tell(const FromPool& word) {
  if (registered_) send(word);
}

void TierPool::receive(std::string_view text) {
  if (dead_) return;
  heard_ = tier_.clock.now();
  const ToPool asked = parse_to_pool(text);
  if (const auto* registered = std::get_if<Registered>(&asked)) {
    answers_.push_back(*registered);
    if (registered->code != ErrorCode::kOk) return drop("refused");
    registered_ = true;
    wait_ = kFirstRetry;
    return send(model.beat());
  }
  const PoolReply reply = model.answer(asked);
  if (answer_delay_ == Duration(0)) return send(reply);
  tier_.clock.after(answer_delay_, [this, reply] {
    if (!dead_) process.run([=, this] { send(reply); });
  });
}

void TierPool::tick() {
  if (dead_) return;
  tier_.clock.after(kBeat, [this] { tick(); });
  const Time now = tier_.clock.now();
  if (connection_ && !cut_) {  // pings
    if (!process.stopped() && connection_->opened) connection_->heard = now;
    if (!tier_.process.stopped()) heard_ = now;
  }
  const auto idle = std::max(PoolLinks::Config().pool_timeout, PoolLinks::Config().pool_patience);
  if (connection_ && connection_->opened && now - connection_->heard > idle + seconds(5)) {
    tier_.process.run([connection = connection_] {
      connection->end({ErrorCode::kDeadlineExceeded, "silent for too long"});
    });
  }
  if (process.stopped()) return;
  for (const auto& [id, sequence] : std::map(model.sequences())) {
    const Time since = unknown_since_.try_emplace(id, now).first->second;
    if (tier_.is_known(id)) {
      unknown_since_.erase(id);
    } else if (now - since >= kLease) {
      model.end(id);
      if (registered_) send(SequenceEnded{id, "lease_expired"});
    }
  }
  if (registered_) send(model.beat());
  if (connection_ && now - heard_ > kPoolsPatience) drop("Broken pipe");
}

SimulatedTier::Control::Control(SimulatedTier& tier, const Config& config)
    : registry(config.incarnation),
      links(
          tier.clock, registry, config.links,
          [this](const std::string& pool, const std::vector<SequenceInfo>& sequences) {
            admissions.restore(pool, sequences);
          },
          [&tier](LogLevel, std::string_view text) { tier.log.emplace_back(text); }),
      call_pool(
          [this](const std::string& pool, ToPool message, Time deadline, PoolCalls::Done done) {
            links.call(pool, std::move(message), deadline, std::move(done));
          }),
      admissions(tier.clock, registry, {config.admission_timeout}, call_pool),
      held(tier.clock, registry, config.admission_timeout, call_pool) {}

SimulatedTier::SimulatedTier(const Config& config)
    : control(std::make_unique<Control>(*this, config)), config_(config) {
  clock.after(PoolLinks::kWatchPeriod, [this] { tick(); });
}

void SimulatedTier::tick() {
  const auto watch = [this] {
    control->links.watch();
    clock.after(PoolLinks::kWatchPeriod, [this] { tick(); });
  };
  timer_first_ = !timer_first_;
  if (timer_first_) {
    process.run_first(watch);
  } else {
    process.run(watch);
  }
}

TierPool& SimulatedTier::add_pool(const ToyPoolConfig& config) {
  return *pools.emplace_back(std::make_unique<TierPool>(*this, config));
}

void SimulatedTier::restart_control(std::uint32_t incarnation) {
  ++restarts_;
  config_.incarnation = incarnation;
  control.reset();
  control = std::make_unique<Control>(*this, config_);
}

void SimulatedTier::arrive(const std::function<void()>& message) {
  const int number = messages_++;
  if (restart_at_ == std::pair(number, true)) restart_control(config_.incarnation + 1);
  message();
  if (restart_at_ == std::pair(number, false)) restart_control(config_.incarnation + 1);
}

std::shared_ptr<SimulatedTier::Admission> SimulatedTier::admit(const AdmitRequest& request) {
  const auto asked = admissions.emplace_back(std::make_shared<Admission>());
  process.run([=, this] {
    asked->deadline = clock.now() + config_.admission_timeout;
    asked->stopped_before = process.stopped_for();
    control->admissions.admit(request, [=, this](const AdmissionResult& result) {
      ++asked->answers;
      asked->answered = clock.now();
      asked->result = result;
      if (!result.status.ok()) return;
      known_[result.sequence.id] = {result.sequence.pool, !request.idempotency_key.empty()};
    });
  });
  return asked;
}

AdmissionResult SimulatedTier::admitted(const AdmitRequest& request) {
  const auto asked = admit(request);
  while (asked->answers == 0) pass(kDelay);
  return asked->result;
}

void SimulatedTier::query(SequenceId id, std::function<void(const Status&)> done) {
  process.run([this, id, done = std::move(done)] {
    const Status refused = status_of([&] {
      control->held.query(id,
                          [done](const Status& status, const SequenceHandle&) { done(status); });
    });
    if (!refused.ok()) done(refused);
  });
}

Status SimulatedTier::queried(SequenceId id) {
  std::optional<Status> answer;
  query(id, [&](const Status& status) { answer = status; });
  while (!answer) pass(kDelay);
  return *answer;
}

void SimulatedTier::free(SequenceId id, const std::string& of) {
  const std::string pool = of;  // it may be forgotten with the sequence
  forget(id);
  process.run([this, id, pool] {
    static_cast<void>(status_of([&] { control->held.free(id, pool, [](const Status&) {}); }));
  });
}

PoolState SimulatedTier::state(const std::string& pool) const {
  const Pool* known = control->registry.find(pool);
  return known == nullptr ? PoolState::kLost : known->state;
}

}  // namespace tributary
