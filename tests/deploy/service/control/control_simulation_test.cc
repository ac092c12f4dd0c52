// The control plane's decisions with whole pools in simulated time: who is silent, who is lost, who
// comes back, and what clients are told meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "deploy/service/protocol/patience.h"
#include "tests/deploy/service/control/simulated_tier.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

/// A message there and back, and the answer to it.
constexpr milliseconds kSoon{10};
constexpr PoolLinks::Config kLinks;

AdmitRequest small(const std::string& key = "") {
  return {10, 10, SpreadPolicy::kAuto, key, "secret"};
}

/// A tier whose pools have registered.
struct Pools : SimulatedTier {
  explicit Pools(std::vector<std::string> names = {"a"}, const Config& config = {})
      : SimulatedTier(config) {
    for (const std::string& name : names) {
      ToyPoolConfig model;
      model.name = name;
      add_pool(model);
    }
    pass(kSoon);
  }
  [[nodiscard]] TierPool& pool(std::size_t index = 0) { return *pools.at(index); }
};

TEST(ControlSimulation, APoolIsSilentAfterItsTimeoutAndNoSooner) {
  Pools tier;
  const SequenceId id = tier.admitted(small()).sequence.id;
  tier.pass(seconds(3));
  ASSERT_EQ(tier.state("a"), PoolState::kServing);
  const Time heard = tier.control->registry.find("a")->heard;
  tier.pool().cut(std::chrono::hours(1));
  tier.clock.advance(heard + kLinks.pool_timeout - tier.clock.now());
  EXPECT_EQ(tier.state("a"), PoolState::kServing);
  tier.pass(PoolLinks::kWatchPeriod);
  EXPECT_EQ(tier.state("a"), PoolState::kLost);
  EXPECT_EQ(tier.control->registry.find("a")->lost_because, "no heartbeat for 1500 ms");
  EXPECT_EQ(tier.admitted(small()).status.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kUnavailable);

  tier.clock.advance(heard + kLinks.pool_patience - milliseconds(1) - tier.clock.now());
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kUnavailable) << "it may come back";
  tier.pass(PoolLinks::kWatchPeriod + kSoon);
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kPoolLost);
}

TEST(ControlSimulation, ASilentPoolThatComesBackHasLostNothing) {
  for (const bool cut : {false, true}) {
    for (const milliseconds silence : {milliseconds(2'500), milliseconds(10'000)}) {
      Pools tier;
      const SequenceId id = tier.admitted(small()).sequence.id;
      tier.pass(seconds(3));
      if (cut) {
        tier.pool().cut(silence);
      } else {
        tier.pool().process.stop(silence);
      }
      tier.pass(silence - milliseconds(1));
      EXPECT_EQ(tier.state("a"), PoolState::kLost);
      tier.pass(2 * kPoolRetry);
      EXPECT_EQ(tier.state("a"), PoolState::kServing) << "cut " << cut;
      EXPECT_TRUE(tier.queried(id).ok()) << "cut " << cut;
    }
  }
}

TEST(ControlSimulation, AnEndedConnectionLosesThePoolAtOnce) {
  Pools tier;
  const SequenceId id = tier.admitted(small()).sequence.id;
  tier.pass(seconds(3));
  tier.pool().kill();
  tier.pass(kSoon);
  EXPECT_EQ(tier.state("a"), PoolState::kLost);
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kPoolLost);
}

/// The end of its connection says that it had lost that, or has ended: it has the time in which a
/// living pool registers again.
TEST(ControlSimulation, ASilentPoolWhoseConnectionEndsIsLostSoon) {
  Pools tier;
  const SequenceId id = tier.admitted(small()).sequence.id;
  tier.pass(seconds(3));
  tier.pool().process.stop(std::chrono::hours(1));
  tier.pass(seconds(3));
  ASSERT_EQ(tier.state("a"), PoolState::kLost);
  tier.pool().kill();
  tier.pass(kSettleTime);
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kUnavailable);
  tier.pass(PoolLinks::kWatchPeriod + kSoon);
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kPoolLost);
}

/// The pools go on sending heartbeats, or give the silent control plane up and connect again.
TEST(ControlSimulation, AControlPlaneThatIsHeldUpLosesNobody) {
  for (const int ms : {400, 1'000, 3'000, 8'000, 12'000, 60'000}) {
    for (int phase = 0; phase < 4; ++phase) {
      Pools tier({"a", "b"});
      tier.pass(seconds(3) + milliseconds(125 * phase));
      std::vector<SequenceId> ids;
      for (int i = 0; i < 4; ++i) ids.push_back(tier.admitted(small()).sequence.id);
      tier.stop_control(milliseconds(ms));
      std::map<ErrorCode, int> answers;
      for (int passed = 0; passed < ms + 1'000;) {
        for (const SequenceId id : ids) {
          tier.query(id, [&](const Status& status) { ++answers[status.code()]; });
        }
        const int step = tier.process.stopped() ? 100 : 10;
        tier.pass(milliseconds(step));
        passed += step;
      }
      answers.erase(ErrorCode::kOk);
      answers.erase(ErrorCode::kUnavailable);  // while a pool connects anew
      EXPECT_TRUE(answers.empty())
          << ms << " ms, phase " << phase << ": " << error_code_name(answers.begin()->first);
      tier.pass(kSettleTime);
      for (const SequenceId id : ids) {
        EXPECT_TRUE(tier.queried(id).ok()) << ms << " ms, phase " << phase;
      }
    }
  }
}

TEST(ControlSimulation, APoolThatDoesNotAnswerGivesATimeoutAndNoLeak) {
  Pools tier;
  tier.pool().answer_after(seconds(12));
  const auto asked = tier.admit(small());
  tier.pass(seconds(10) + PoolLinks::kWatchPeriod);
  ASSERT_EQ(asked->answers, 1);
  EXPECT_EQ(asked->result.status.code(), ErrorCode::kDeadlineExceeded);
  EXPECT_GE(asked->answered, asked->deadline);
  EXPECT_EQ(tier.pool().model.sequences().size(), 1U);
  tier.pass(seconds(2));  // the answer comes, and the sequence is given back
  EXPECT_TRUE(tier.pool().model.sequences().empty());
  EXPECT_EQ(sequences_of(tier.control->registry), 0U);
}

TEST(ControlSimulation, APoolThatIsLostMeanwhileIsPassedOver) {
  Pools tier({"a", "b"});
  tier.pool(0).answer_after(seconds(3));
  const auto asked = tier.admit(small());
  tier.pass(seconds(1));
  ASSERT_EQ(tier.pool(0).model.sequences().size(), 1U);
  tier.pool(0).kill();
  tier.pass(kSoon);
  ASSERT_TRUE(asked->result.status.ok()) << asked->result.status.message();
  EXPECT_EQ(asked->result.sequence.pool, "b");
}

/// What is asked while a pool connects anew is not the loss of its sequences.
TEST(ControlSimulation, AQuestionToAPoolThatConnectsAnewFindsItAlive) {
  Pools tier;
  const SequenceId id = tier.admitted(small()).sequence.id;
  tier.pool().answer_after(seconds(3));
  Status answer(ErrorCode::kInternal, "none");
  tier.query(id, [&](const Status& status) { answer = status; });
  tier.pass(kSoon);
  ToyPoolConfig again;
  again.sequences = tier.pool().model.about().sequences;
  tier.add_pool(again);  // before the old connection ends
  tier.pass(kSoon);
  EXPECT_EQ(answer.code(), ErrorCode::kUnavailable) << answer.message();
  EXPECT_TRUE(tier.queried(id).ok());
}

TEST(ControlSimulation, OneKeyIsOneSequenceAcrossARestartOfTheControlPlane) {
  Pools tier;
  const SequenceId id = tier.admitted(small("key")).sequence.id;
  EXPECT_EQ(tier.admitted(small("key")).sequence.id, id);
  tier.restart_control(1004);
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kUnavailable) << "its pool may still register";
  tier.pass(kPoolRetry);
  EXPECT_TRUE(tier.queried(id).ok());
  EXPECT_EQ(tier.admitted(small("key")).sequence.id, id);
  EXPECT_GT(tier.admitted(small()).sequence.id, id);
}

TEST(ControlSimulation, AForkWaitsForThePoolOfItsParentAfterARestart) {
  Pools tier;
  AdmitRequest fork = small();
  fork.parent = {.id = tier.admitted(small()).sequence.id, .epoch = 1, .length = 1};
  EXPECT_TRUE(tier.admitted(fork).status.ok());
  tier.restart_control(1004);
  EXPECT_EQ(tier.admitted(fork).status.code(), ErrorCode::kUnavailable) << "it may still register";
  tier.pass(kPoolRetry);
  EXPECT_TRUE(tier.admitted(fork).status.ok());
  tier.free(fork.parent.id, "a");
  tier.pass(kSoon);
  EXPECT_EQ(tier.admitted(fork).status.code(), ErrorCode::kNotFound);
}

TEST(ControlSimulation, ARestartedControlPlaneWaitsForPoolsForItsSettlingTime) {
  Pools tier;
  const SequenceId id = tier.admitted(small()).sequence.id;
  tier.pool().kill();
  tier.restart_control(1004);
  const auto freed = [&](const std::string& pool) {
    return status_of([&] { tier.control->held.free(id, pool, [](const Status&) {}); }).code();
  };
  tier.pass(kSettleTime - milliseconds(1));
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(freed("a"), ErrorCode::kUnavailable);
  tier.pass(milliseconds(1));
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kNotFound);
  EXPECT_EQ(freed("a"), ErrorCode::kNotFound);
}

TEST(ControlSimulation, APoolThatIsBackAnswersForWhatItNoLongerHolds) {
  Pools tier;
  const SequenceId gone = (SequenceId{1} << 32) | 5;  // of a control plane long ago
  const auto freed = [&](const std::string& pool) {
    return status_of([&] { tier.control->held.free(gone, pool, [](const Status&) {}); }).code();
  };
  EXPECT_EQ(freed("a"), ErrorCode::kOk);
  EXPECT_EQ(freed("b"), ErrorCode::kUnavailable);
  EXPECT_EQ(freed(""), ErrorCode::kUnavailable);
}

ToyPoolConfig holder_of(std::size_t sequences) {
  ToyPoolConfig config;
  config.pages_per_worker = static_cast<int>(sequences);
  SequenceInfo held;
  held.token.fill(7);
  held.prompt_tokens = held.length = 64;
  held.extents = {{0, 64, 0}};
  held.missing = "worker 0 has 0 of 64 rows, first missing layer 0 position 0";
  for (std::size_t i = 0; i < sequences; ++i) {
    held.id = (SequenceId{5} << 32) + i;
    held.idempotency_key = fmt::format("{:040}", i);
    config.sequences.push_back(held);
  }
  return config;
}

/// A control plane was restarted: more than 16,384 for each worker, and more than 32 MiB.
TEST(ControlSimulation, APoolOfAHundredThousandSequencesRegisters) {
  Pools tier(std::vector<std::string>{});
  const TierPool& pool = tier.add_pool(holder_of(100'000));
  tier.pass(seconds(1));
  ASSERT_TRUE(pool.registered()) << pool.answers().back().message;
  EXPECT_EQ(sequences_of(tier.control->registry), 100'000U);
}

/// A pool's side of a connection, message by message.
class Typed final : public WebSocket {
 public:
  void set_handlers(WebSocketHandlers handlers) override { say = std::move(handlers.message); }
  void send(std::string text) override { answers.push_back(std::move(text)); }
  void close() override { closed = true; }
  [[nodiscard]] const std::string& remote() const noexcept override { return remote_; }

  std::function<void(std::string_view)> say;
  std::vector<std::string> answers;
  bool closed = false;

 private:
  std::string remote_ = "10.0.0.2:4000";
};

/// Its pieces come a second apart, over a slow link: none of its sequences is given up meanwhile.
TEST(ControlSimulation, ARegistrationIsTimedFromItsLastMessage) {
  for (const bool restarted : {false, true}) {
    Pools tier(std::vector<std::string>{});
    const ToyPoolConfig config = holder_of(4'000);
    const SequenceId first = config.sequences.front().id;
    TierPool& before = tier.add_pool(config);
    tier.pass(seconds(1));
    ASSERT_TRUE(before.registered());
    before.cut(std::chrono::hours(1));
    if (restarted) {
      tier.restart_control(9);
    } else {
      tier.pass(kLinks.pool_patience - seconds(2));
      ASSERT_EQ(tier.state("a"), PoolState::kLost);
    }
    const auto socket = std::make_shared<Typed>();
    tier.control->links.accept(socket);
    const std::vector<FromPool> pieces = registration(ToyPool(config).about());
    ASSERT_GE(pieces.size(), 8U);
    for (const FromPool& piece : pieces) {
      EXPECT_NE(tier.queried(first).code(), ErrorCode::kPoolLost);
      EXPECT_NE(tier.queried(first).code(), ErrorCode::kNotFound);
      socket->say(to_json(piece));
      tier.pass(seconds(1));
    }
    ASSERT_EQ(socket->answers.size(), 1U);
    EXPECT_EQ(sequences_of(tier.control->registry), 4'000U);
    EXPECT_FALSE(socket->closed);

    const auto silent = std::make_shared<Typed>();
    tier.control->links.accept(silent);
    silent->say(to_json(pieces[0]));
    tier.pass(kLinks.registration_timeout);
    EXPECT_FALSE(silent->closed);
    tier.pass(2 * PoolLinks::kWatchPeriod);
    EXPECT_TRUE(silent->closed);
  }
}

/// The host starts anew, before it knows the time.
TEST(ControlSimulation, AControlPlaneWhoseClockIsYearsBehindTakesItsPoolsBack) {
  SimulatedTier::Config config;
  config.incarnation = 366'000'000;
  Pools tier({"a"}, config);
  const SequenceId id = tier.admitted(small()).sequence.id;
  tier.restart_control(1);
  EXPECT_EQ(tier.queried(id).code(), ErrorCode::kUnavailable) << "its pool may still register";
  tier.pass(kPoolRetry);
  EXPECT_EQ(tier.state("a"), PoolState::kServing);
  EXPECT_TRUE(tier.queried(id).ok());
  const AdmissionResult next = tier.admitted(small());
  EXPECT_TRUE(next.status.ok()) << next.status.message();
  EXPECT_NE(next.sequence.id, id);
}

/// Pools, clients and faults, chosen by a seed. A fault ends before the patience with it does.
class RandomRun {
 public:
  explicit RandomRun(unsigned seed) : random_(seed), tier_({"a", "b", "c"}) {
    tier_.pass(seconds(2));
  }

  void run(Duration duration) {
    const Time end = tier_.clock.now() + duration;
    while (tier_.clock.now() < end && !testing::Test::HasFailure()) {
      tier_.pass(milliseconds(between(1, 200)));
      act();
      check();
    }
    for (auto& pool : tier_.pools) pool->answer_after(Duration(0));
    tier_.pass(std::chrono::minutes(2));
    check_quiet();
  }

  /// All that happened, for comparison with another run.
  std::vector<std::string> trace;
  int faults = 0;
  int events = 0;

 private:
  int between(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<unsigned>(most - least + 1));
  }
  milliseconds fault() { return milliseconds(between(100, 10'000)); }

  void act() {
    ++events;
    const int what = between(0, 99);
    TierPool& pool = living_pool();
    if (what < 50) {
      AdmitRequest request{between(0, 1'500), between(1, 100), SpreadPolicy::kAuto, ""};
      if (between(0, 3) == 0) {
        const int key = between(0, 9);
        request = {100 * key, 10, SpreadPolicy::kAuto, fmt::format("key{}", key), "secret"};
      }
      tier_.admit(request);
    } else if (what < 72) {
      const auto id = some_sequence();
      if (id && !tier_.known().at(*id).keyed) tier_.free(*id, tier_.known().at(*id).pool);
    } else if (what < 90) {
      if (const auto id = some_sequence()) ask(*id);
    } else if (faults_left()) {
      ++faults;
      const int kind = between(0, 9);
      if (kind < 3) tier_.stop_control(fault());
      if (kind >= 3 && kind < 5) pool.process.stop(fault());
      if (kind >= 5 && kind < 7) pool.cut(fault());
      if (kind == 7) pool.answer_after(between(0, 1) == 0 ? Duration(0) : Duration(fault()));
      if (kind == 8) restart(pool);
      if (kind == 9) drain(pool.name());
    }
  }

  TierPool& living_pool() {
    while (true) {
      TierPool& pool = *tier_.pools[random_() % tier_.pools.size()];
      if (!pool.dead()) return pool;
    }
  }

  /// A pool or the control plane is given time to recover from a fault before the next one: two in
  /// a row may be longer than the patience.
  bool faults_left() {
    if (tier_.clock.now() < next_fault_) return false;
    next_fault_ = tier_.clock.now() + seconds(13);
    return true;
  }

  std::optional<SequenceId> some_sequence() {
    if (tier_.known().empty()) return std::nullopt;
    auto entry = tier_.known().begin();
    std::advance(entry, between(0, static_cast<int>(tier_.known().size()) - 1));
    return entry->first;
  }

  /// A sequence that a client holds and whose pool was not killed is never said to be gone.
  void ask(SequenceId id) {
    tier_.query(id, [this, id](const Status& status) {
      const bool gone =
          status.code() == ErrorCode::kPoolLost || status.code() == ErrorCode::kNotFound;
      trace.push_back(fmt::format("{} is {}", id, error_code_name(status.code())));
      if (!gone) return;
      EXPECT_TRUE(!tier_.is_known(id) || was_killed(id))
          << trace.back() << ": " << status.message() << said();
    });
  }
  /// With its pool.
  [[nodiscard]] bool was_killed(SequenceId id) const {
    return std::ranges::any_of(tier_.pools, [&](const auto& pool) {
      return pool->dead() && pool->model.sequences().contains(id);
    });
  }

  void restart(TierPool& pool) {
    pool.kill();
    ToyPoolConfig config;
    config.name = pool.name();
    config.run = fmt::format("run{}", tier_.pools.size() + 1);
    tier_.add_pool(config);
  }

  void drain(const std::string& pool) {
    const bool on = between(0, 1) == 0;
    tier_.process.run([this, pool, on] {
      tier_.control->links.call(pool, SetDraining{0, on}, tier_.clock.now() + seconds(10),
                                [](const PoolReply&) {});
    });
  }

  std::string said() const {
    std::string text;
    for (const std::string& line : tier_.log) text += "\n" + line;
    return text;
  }

  void check() {
    const auto& control = *tier_.control;
    std::size_t held = 0;
    for (const auto& [name, pool] : control.registry.pools()) {
      held += pool.sequences.size();
      EXPECT_GE(pool.pages_asked, 0);
      for (const SequenceId id : pool.sequences) EXPECT_EQ(*control.registry.pool_of(id), name);
    }
    EXPECT_EQ(held, sequences_of(control.registry));
    std::uint64_t answered = traced_;
    for (std::size_t i = traced_; i < tier_.admissions.size(); ++i) {
      const auto& asked = tier_.admissions[i];
      EXPECT_LE(asked->answers, 1);
      answered += asked->answers == 1 ? 1 : 0;
      const auto stopped = tier_.process.stopped_for() - asked->stopped_before;
      // After a hold-up all that has arrived is read before deadlines are judged.
      const Time last = asked->deadline + 2 * PoolLinks::kWatchPeriod + stopped;
      EXPECT_TRUE(asked->answers == 1 || tier_.clock.now() <= last)
          << "no answer in time" << said();
      EXPECT_TRUE(asked->answers == 0 || asked->answered <= last) << "answered too late" << said();
    }
    std::uint64_t counted = control.admissions.repeated();
    for (const std::uint64_t count : control.admissions.results()) counted += count;
    // A repetition is counted at once, and answered with the admission that it waits for.
    EXPECT_LE(answered, counted);
    EXPECT_LE(counted, tier_.admissions.size());
    while (traced_ < tier_.admissions.size() && tier_.admissions[traced_]->answers == 1) {
      const auto& asked = *tier_.admissions[traced_++];
      trace.push_back(fmt::format("{} {} {}", asked.answered.time_since_epoch().count(),
                                  error_code_name(asked.result.status.code()),
                                  asked.result.sequence.id));
    }
  }

  /// Nothing is under way: the control plane and its pools know the same.
  void check_quiet() {
    check();
    const auto& control = *tier_.control;
    EXPECT_EQ(control.admissions.pending(), 0U);
    EXPECT_EQ(control.links.calls(), 0U);
    EXPECT_EQ(traced_, tier_.admissions.size());
    for (const auto& asked : tier_.admissions) EXPECT_EQ(asked->answers, 1);
    std::uint64_t counted = control.admissions.repeated();
    for (const std::uint64_t count : control.admissions.results()) counted += count;
    EXPECT_EQ(counted, tier_.admissions.size());
    for (const auto& pool : tier_.pools) {
      if (pool->dead()) continue;
      ASSERT_TRUE(pool->registered()) << pool->name() << said();
      const Pool& known = *control.registry.find(pool->name());
      std::set<SequenceId> there;
      for (const auto& [id, sequence] : pool->model.sequences()) there.insert(id);
      EXPECT_EQ(std::set<SequenceId>(known.sequences.begin(), known.sequences.end()), there);
      EXPECT_EQ(known.pages_asked, 0);
    }
    for (const auto& [id, pool] : tier_.known()) {
      EXPECT_TRUE(control.registry.pool_of(id) != nullptr || was_killed(id))
          << id << " of " << pool.pool << said();
    }
  }

  std::mt19937 random_;
  Pools tier_;
  Time next_fault_;
  std::size_t traced_ = 0;
};

class FaultsAndRequestsByChance : public testing::TestWithParam<unsigned> {};

TEST_P(FaultsAndRequestsByChance, KeepTheirPromises) {
  RandomRun run(GetParam());
  run.run(std::chrono::minutes(12));
  EXPECT_GE(run.events, 5'000);
  EXPECT_GE(run.faults, 40);
}

INSTANTIATE_TEST_SUITE_P(Seeds, FaultsAndRequestsByChance, testing::Range(1U, 6U));

TEST(ControlSimulation, ASeedRepeatsItsRun) {
  std::vector<std::vector<std::string>> traces;
  for (const unsigned seed : {5U, 5U, 6U}) {
    RandomRun run(seed);
    run.run(std::chrono::minutes(1));
    traces.push_back(run.trace);
  }
  EXPECT_EQ(traces[0], traces[1]);
  EXPECT_NE(traces[0], traces[2]);
}

}  // namespace
}  // namespace tributary
