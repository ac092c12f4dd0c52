#include "deploy/service/control/admissions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <variant>

#include "core/interface/manual_clock.h"
#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/protocol/pool_samples.h"

namespace tributary {
namespace {

using std::chrono::seconds;

const Time kStart{std::chrono::hours(1)};

void add_pool(PoolRegistry& registry, const std::string& name, int pages_per_worker = 100,
              std::vector<SequenceInfo> sequences = {}) {
  RegisterPool about;
  about.name = name;
  about.run = "run";
  about.shape = sample_shape();
  about.pages_per_worker = pages_per_worker;
  about.lease_ms = 1000;
  about.workers = {{0, "host", "one", "cpu"}, {1, "host", "two", "cpu"}};
  about.sequences = std::move(sequences);
  registry.register_pool(about, kStart);
}

/// Admissions over a registry. Keeps their questions to pools, which the test answers.
struct Bench {
  struct Question {
    std::string pool;
    Admit admit;
    PoolCalls::Done done;

    void answer(ErrorCode code) const { done({0, code, "said so", {}}); }
    void admit_it() const {
      PoolReply reply;
      reply.sequence.emplace();
      reply.sequence->id = admit.id;
      reply.sequence->prompt_tokens = admit.wanted.prompt_tokens;
      reply.sequence->max_new_tokens = admit.wanted.max_new_tokens;
      done(reply);
    }
  };

  explicit Bench(std::size_t max_pending = 10)
      : admissions(clock, registry, {seconds(10), max_pending, 20},
                   [this](const std::string& pool, ToPool message, Time, PoolCalls::Done done) {
                     if (const auto* admit = std::get_if<Admit>(&message)) {
                       questions.push_back({pool, *admit, std::move(done)});
                     } else {
                       freed.push_back(std::get<Free>(message).id);
                     }
                   }) {}

  void admit(const AdmitRequest& request) {
    admissions.admit(request, [this](const AdmissionResult& result) { results.push_back(result); });
  }
  [[nodiscard]] ErrorCode last() const { return results.back().status.code(); }

  ManualClock clock{kStart};
  PoolRegistry registry{7};
  std::vector<Question> questions;
  std::vector<SequenceId> freed;
  std::vector<AdmissionResult> results;
  Admissions admissions;
};

/// A key takes a few KiB with its answer: a tier with few admissions must not keep 65,536 of them
/// for days.
TEST(Admissions, ForgetKeysInTime) {
  Bench bench;
  add_pool(bench.registry, "a");
  const AdmitRequest request{64, 0, SpreadPolicy::kAuto, "key", "secret"};
  bench.admit(request);
  bench.questions.back().admit_it();
  bench.clock.advance(seconds(599));
  bench.admit(request);
  EXPECT_EQ(bench.questions.size(), 1U);
  EXPECT_EQ(bench.admissions.repeated(), 1U);
  bench.clock.advance(seconds(1));
  bench.admit(request);  // the key is forgotten: a new admission
  ASSERT_EQ(bench.questions.size(), 2U);
  bench.clock.advance(seconds(700));
  bench.admit(request);  // that one is pending, and is kept
  EXPECT_EQ(bench.questions.size(), 2U);
}

TEST(PoolChoice, PrefersFreePagesThenFewSequences) {
  PoolRegistry registry(7);
  add_pool(registry, "a", 100);
  add_pool(registry, "b", 200);
  add_pool(registry, "c", 100);
  registry.add_sequence("a", 1);
  const AdmitRequest request{64, 0, SpreadPolicy::kAuto, ""};
  EXPECT_EQ(pools_to_ask(registry, request), (std::vector<std::string>{"b", "c", "a"}));
  registry.ask_pages("b", 300);
  EXPECT_EQ(pools_to_ask(registry, request), (std::vector<std::string>{"c", "a", "b"}));
  registry.set_draining("c", true, kStart);
  EXPECT_EQ(pools_to_ask(registry, request), (std::vector<std::string>{"a", "b"}));
}

TEST(PoolChoice, LeavesOutPoolsThatCouldNeverHoldIt) {
  PoolRegistry registry(7);
  const AdmitRequest request{150 * 64, 0, SpreadPolicy::kAuto, ""};
  EXPECT_EQ(code_of([&] { (void)pools_to_ask(registry, request); }), ErrorCode::kUnavailable);
  add_pool(registry, "a", 70);
  EXPECT_EQ(code_of([&] { (void)pools_to_ask(registry, request); }), ErrorCode::kTooLarge);
  add_pool(registry, "b", 100);
  EXPECT_EQ(pools_to_ask(registry, request), std::vector<std::string>{"b"});
  const AdmitRequest single{150 * 64, 0, SpreadPolicy::kSingle, ""};
  EXPECT_EQ(code_of([&] { (void)pools_to_ask(registry, single); }), ErrorCode::kTooLarge);
  const auto refusal = status_of([&] { (void)pools_to_ask(registry, single); });
  const int leaf_pages = registry.find("b")->about.shape.leaf_tokens / 64;
  EXPECT_NE(
      refusal.message().find(fmt::format(
          "(the largest has 200 pages, 100 on each of 2 workers, in leaves of {})", leaf_pages)),
      std::string::npos)
      << refusal.message();
  const AdmitRequest growth{0, 150 * 64, SpreadPolicy::kAuto, ""};
  EXPECT_EQ(pools_to_ask(registry, growth), std::vector<std::string>{"b"});
}

TEST(PoolChoice, ComesBackAfterTheMeanTimeBetweenEnds) {
  PoolRegistry registry(7);
  add_pool(registry, "a");
  EXPECT_EQ(retry_after_seconds(registry, kStart, kStart), 1);
  EXPECT_EQ(retry_after_seconds(registry, kStart, kStart + seconds(12)), 12);
  EXPECT_EQ(retry_after_seconds(registry, kStart, kStart + seconds(500)), 30);
  for (SequenceId id = 1; id <= 6; ++id) {
    registry.add_sequence("a", id);
    registry.end_sequence(id, SequenceEnd::kFreed, kStart + seconds(100));
  }
  EXPECT_EQ(retry_after_seconds(registry, kStart, kStart + seconds(101)), 5);  // 6 in 30 s
  EXPECT_EQ(retry_after_seconds(registry, kStart, kStart + seconds(140)), 30);
  for (SequenceId id = 1; id <= 400; ++id) {
    registry.add_sequence("a", id);
    registry.end_sequence(id, SequenceEnd::kFreed, kStart + seconds(150));
  }
  EXPECT_EQ(retry_after_seconds(registry, kStart, kStart + seconds(151)), 1);
}

TEST(Admissions, AsksTheNextPoolWhenOneIsFull) {
  Bench bench;
  add_pool(bench.registry, "a");
  add_pool(bench.registry, "b");
  bench.admit({64, 0, SpreadPolicy::kAll, ""});
  ASSERT_EQ(bench.questions.size(), 1U);
  EXPECT_EQ(bench.questions[0].admit.wanted.spread, SpreadPolicy::kAll);
  EXPECT_EQ(bench.registry.find("a")->pages_asked, 1);
  bench.questions[0].answer(ErrorCode::kPoolFull);
  EXPECT_EQ(bench.registry.find("a")->pages_asked, 0);
  ASSERT_EQ(bench.questions.size(), 2U);
  EXPECT_NE(bench.questions[1].admit.id, bench.questions[0].admit.id);
  bench.questions[1].admit_it();
  ASSERT_EQ(bench.results.size(), 1U);
  EXPECT_TRUE(bench.results[0].status.ok());
  EXPECT_EQ(bench.results[0].sequence.pool, "b");
  EXPECT_EQ(bench.registry.find("b")->pages_admitted, 1);
  EXPECT_EQ(bench.admissions.pending(), 0U);
}

/// No other pool has its rows.
TEST(Admissions, AForkGoesToItsParentsPool) {
  Bench bench;
  for (const char* name : {"a", "b", "c"}) add_pool(bench.registry, name);
  bench.admit({64, 0, SpreadPolicy::kAuto, ""});
  bench.questions.back().answer(ErrorCode::kPoolFull);
  bench.questions.back().admit_it();
  const SequenceHandle parent = bench.results.back().sequence;
  AdmitRequest fork{64, 1, SpreadPolicy::kAuto, "key", "secret"};
  fork.parent = parent_of(parent, 10);
  for (const ErrorCode refusal :
       {ErrorCode::kPoolFull, ErrorCode::kTooLarge, ErrorCode::kFailedPrecondition,
        ErrorCode::kUnavailable, ErrorCode::kStaleEpoch, ErrorCode::kPermissionDenied}) {
    const std::size_t asked = bench.questions.size();
    bench.admit(fork);
    ASSERT_EQ(bench.questions.size(), asked + 1);
    EXPECT_EQ(bench.questions.back().pool, parent.pool);
    EXPECT_EQ(bench.questions.back().admit.wanted.parent, fork.parent);
    bench.questions.back().answer(refusal);
    EXPECT_EQ(bench.questions.size(), asked + 1);
    EXPECT_EQ(bench.last(), refusal);
  }
  bench.admit(fork);
  bench.questions.back().admit_it();
  EXPECT_EQ(bench.last(), ErrorCode::kOk);
  AdmitRequest other = fork;
  other.parent.length = 11;
  bench.admit(other);
  EXPECT_EQ(bench.last(), ErrorCode::kAlreadyExists);
  fork.idempotency_key = "next";
  fork.parent.id = 1;
  bench.admit(fork);
  EXPECT_EQ(bench.last(), ErrorCode::kNotFound);
}

/// What a pool holds has to fit into a registration, or it could never come back.
TEST(Admissions, APoolIsFullBeforeItCouldNotRegister) {
  Bench bench;
  add_pool(bench.registry, "a", 10'000'000);
  Heartbeat beat;
  beat.workers.resize(2);
  beat.workers[1].rank = 1;
  beat.workers[0].pages_used = 4'000'000;
  bench.registry.heartbeat("a", beat, kStart);
  bench.admit({64, 0, SpreadPolicy::kAuto, ""});
  EXPECT_EQ(bench.questions.size(), 1U);
  bench.questions[0].admit_it();
  beat.workers[0].pages_used = 4'800'000;
  bench.registry.heartbeat("a", beat, kStart);
  bench.admit({64, 0, SpreadPolicy::kAuto, ""});
  EXPECT_EQ(bench.questions.size(), 1U);
  EXPECT_EQ(bench.last(), ErrorCode::kPoolFull);

  add_pool(bench.registry, "b", 1'000'000);
  for (SequenceId id = 1; id <= 400'000; ++id) bench.registry.add_sequence("b", id);
  bench.admit({64, 0, SpreadPolicy::kAuto, ""});
  EXPECT_EQ(bench.questions.size(), 1U);
  EXPECT_EQ(bench.last(), ErrorCode::kPoolFull);
}

TEST(Admissions, SaysWhyNoPoolTookIt) {
  Bench bench;
  add_pool(bench.registry, "a");
  add_pool(bench.registry, "b");
  const auto outcome = [&](ErrorCode first, ErrorCode second) {
    bench.questions.clear();
    bench.admit({64, 0, SpreadPolicy::kAuto, ""});
    bench.questions[0].answer(first);
    if (bench.questions.size() > 1) bench.questions[1].answer(second);
    return bench.last();
  };
  EXPECT_EQ(outcome(ErrorCode::kPoolFull, ErrorCode::kPoolFull), ErrorCode::kPoolFull);
  EXPECT_GE(bench.results.back().retry_after_s, 1);
  EXPECT_EQ(outcome(ErrorCode::kTooLarge, ErrorCode::kTooLarge), ErrorCode::kTooLarge);
  EXPECT_EQ(outcome(ErrorCode::kTooLarge, ErrorCode::kPoolFull), ErrorCode::kPoolFull);
  EXPECT_EQ(outcome(ErrorCode::kPoolLost, ErrorCode::kTooLarge), ErrorCode::kUnavailable);
  EXPECT_EQ(outcome(ErrorCode::kFailedPrecondition, ErrorCode::kPoolLost), ErrorCode::kUnavailable);
  EXPECT_EQ(outcome(ErrorCode::kDeadlineExceeded, ErrorCode::kOk), ErrorCode::kDeadlineExceeded);
  EXPECT_EQ(outcome(ErrorCode::kInternal, ErrorCode::kOk), ErrorCode::kInternal);
  EXPECT_EQ(bench.admissions.pending(), 0U);
  EXPECT_EQ(bench.registry.find("a")->pages_asked, 0);
}

TEST(Admissions, RefusesAnAnswerWithoutTheSequence) {
  Bench bench;
  add_pool(bench.registry, "a");
  bench.admit({64, 0, SpreadPolicy::kAuto, ""});
  bench.questions[0].answer(ErrorCode::kOk);
  EXPECT_EQ(bench.last(), ErrorCode::kInternal);
}

TEST(Admissions, RefuseAnAnswerThatIsNotOfThePool) {
  using Change = std::function<void(SequenceInfo&)>;
  const std::vector<Change> changes = {[](SequenceInfo& s) { s.home = 9; },
                                       [](SequenceInfo& s) { s.home = 2; },
                                       [](SequenceInfo& s) { s.home = -1; },
                                       [](SequenceInfo& s) { s.extents[1].rank = 2; },
                                       [](SequenceInfo& s) { s.prompt_tokens = 65; },
                                       [](SequenceInfo& s) { s.max_new_tokens = 1; },
                                       [](SequenceInfo&) {}};
  for (const Change& change : changes) {
    Bench bench;
    add_pool(bench.registry, "a");  // of two workers
    bench.admit({64, 0, SpreadPolicy::kAuto, ""});
    PoolReply reply;
    reply.sequence.emplace();
    reply.sequence->id = bench.questions[0].admit.id;
    reply.sequence->prompt_tokens = 64;
    reply.sequence->extents = {{0, 32, 0}, {32, 64, 1}};
    reply.sequence->home = 1;
    const bool good = &change == &changes.back();
    change(*reply.sequence);
    bench.questions[0].done(reply);
    EXPECT_EQ(bench.last(), good ? ErrorCode::kOk : ErrorCode::kInternal);
    EXPECT_EQ(sequences_of(bench.registry), good ? 1U : 0U);
    EXPECT_EQ(bench.freed.size(), good ? 0U : 1U) << "the pool keeps nothing of it";
  }
}

TEST(Admissions, AreBounded) {
  Bench bench(2);
  add_pool(bench.registry, "a");
  for (int i = 0; i < 3; ++i) bench.admit({64, 0, SpreadPolicy::kAuto, ""});
  ASSERT_EQ(bench.results.size(), 1U);
  EXPECT_EQ(bench.last(), ErrorCode::kPoolFull);
  EXPECT_GE(bench.results[0].retry_after_s, 1);
  bench.questions[0].admit_it();
  bench.admit({64, 0, SpreadPolicy::kAuto, ""});
  EXPECT_EQ(bench.questions.size(), 3U);
}

TEST(Admissions, AKeyOfAFailedTryIsFreeAgain) {
  Bench bench;
  add_pool(bench.registry, "a");
  bench.admit({64, 0, SpreadPolicy::kAuto, "key", "secret"});
  bench.admit({64, 0, SpreadPolicy::kAuto, "key", "secret"});
  bench.admit({64, 1, SpreadPolicy::kAuto, "key", "secret"});
  EXPECT_EQ(bench.last(), ErrorCode::kAlreadyExists);
  bench.questions[0].answer(ErrorCode::kPoolFull);
  EXPECT_EQ(bench.results.size(), 3U);  // both that waited
  bench.admit({64, 1, SpreadPolicy::kAuto, "key", "secret"});
  bench.admit({64, 1, SpreadPolicy::kAuto, "key", "secret"});  // waits for the same answer
  ASSERT_EQ(bench.questions.size(), 2U);
  bench.questions[1].admit_it();
  ASSERT_EQ(bench.results.size(), 5U);
  EXPECT_EQ(bench.last(), ErrorCode::kOk);
  EXPECT_EQ(bench.results[4].sequence.id, bench.results[3].sequence.id);
  bench.admit({64, 1, SpreadPolicy::kSingle, "key", "secret"});
  EXPECT_EQ(bench.last(), ErrorCode::kAlreadyExists);
}

TEST(Admissions, KeysAreForgottenFromTheOldestOn) {
  Bench bench;
  add_pool(bench.registry, "a", 1000);
  for (int i = 0; i < 50; ++i) {
    bench.admit({64, 0, SpreadPolicy::kAuto, fmt::format("key{}", i), "secret"});
    bench.questions.back().admit_it();
  }
  const std::size_t asked = bench.questions.size();
  bench.admit({64, 0, SpreadPolicy::kAuto, "key49", "secret"});
  EXPECT_EQ(bench.questions.size(), asked);
  EXPECT_EQ(bench.results.back().sequence.id, bench.questions.back().admit.id);
  bench.admit({64, 0, SpreadPolicy::kAuto, "key0", "secret"});
  EXPECT_EQ(bench.questions.size(), asked + 1);
}

/// The answer holds a token, and keys are easily guessed: an order's number, say.
TEST(Admissions, OnlyWhoHasTheFirstSecretGetsItsAnswerAgain) {
  Bench bench;
  add_pool(bench.registry, "a");
  const AdmitRequest first{64, 0, SpreadPolicy::kAuto, "key", "secret"};
  AdmitRequest none = first;
  none.idempotency_secret.clear();
  AdmitRequest another = first;
  another.idempotency_secret = "Secret";
  AdmitRequest longer = first;
  longer.idempotency_secret += "s";
  bench.admit(first);
  // Also not while it is pending.
  for (const AdmitRequest& repeat : {none, another, longer}) {
    bench.admit(repeat);
    EXPECT_EQ(bench.last(), ErrorCode::kAlreadyExists);
    EXPECT_EQ(bench.results.back().sequence.token, wire::Token{});
  }
  bench.questions.back().admit_it();
  const SequenceId id = bench.results.back().sequence.id;
  const auto refusal = [&](const AdmitRequest& repeat) {
    bench.admit(repeat);
    EXPECT_EQ(bench.last(), ErrorCode::kAlreadyExists);
    EXPECT_EQ(bench.results.back().sequence.id, 0U);
    return bench.results.back().status.message();
  };
  // Nor is it told whether the rest was guessed.
  AdmitRequest other_length = none;
  other_length.prompt_tokens = 65;
  EXPECT_EQ(refusal(none), refusal(other_length));
  EXPECT_EQ(refusal(another), refusal(longer));
  bench.admit(first);
  EXPECT_EQ(bench.last(), ErrorCode::kOk);
  EXPECT_EQ(bench.results.back().sequence.id, id);
  EXPECT_EQ(bench.questions.size(), 1U);
}

TEST(Admissions, AKeyWithoutASecretAdmitsOnceAndIsNotAnsweredAgain) {
  Bench bench;
  add_pool(bench.registry, "a");
  const AdmitRequest request{64, 0, SpreadPolicy::kAuto, "key"};
  bench.admit(request);
  bench.questions.back().admit_it();
  EXPECT_EQ(bench.last(), ErrorCode::kOk);
  bench.admit(request);
  EXPECT_EQ(bench.last(), ErrorCode::kAlreadyExists);
  EXPECT_EQ(bench.questions.size(), 1U);
}

TEST(Admissions, KeysComeBackFromPools) {
  Bench bench;
  SequenceInfo sequence = sample_sequence();
  sequence.id = 5;
  sequence.idempotency_key = "key";
  sequence.idempotency_secret = "secret";
  add_pool(bench.registry, "a", 1000, {sequence});
  bench.admissions.restore("a", {sequence});
  bench.admit(
      {sequence.prompt_tokens, sequence.max_new_tokens, SpreadPolicy::kAll, "key", "secret"});
  EXPECT_EQ(bench.last(), ErrorCode::kOk);
  EXPECT_EQ(bench.results.back().sequence.id, 5U);
  bench.admit(
      {sequence.prompt_tokens + 1, sequence.max_new_tokens, SpreadPolicy::kAll, "key", "secret"});
  EXPECT_EQ(bench.last(), ErrorCode::kAlreadyExists);
  bench.admit({sequence.prompt_tokens, sequence.max_new_tokens, SpreadPolicy::kAll, "key"});
  EXPECT_EQ(bench.last(), ErrorCode::kAlreadyExists);
  EXPECT_TRUE(bench.questions.empty());
}

TEST(PoolCalls, EndOnceWhateverEndsThem) {
  PoolCalls calls;
  std::vector<ErrorCode> ends;
  const auto note = [&](const PoolReply& reply) { ends.push_back(reply.code); };
  const std::uint64_t first = calls.open("a", kStart + seconds(1), note);
  const std::uint64_t second = calls.open("a", kStart + seconds(2), note);
  (void)calls.open("b", kStart + seconds(3), note);
  PoolReply reply;
  reply.request = first;
  EXPECT_FALSE(calls.answer("b", reply));  // another pool's
  EXPECT_TRUE(calls.answer("a", reply));
  EXPECT_FALSE(calls.answer("a", reply));
  calls.expire(kStart + seconds(2));
  calls.fail_pool("b", {ErrorCode::kPoolLost, "gone"});
  EXPECT_EQ(ends, (std::vector<ErrorCode>{ErrorCode::kOk, ErrorCode::kDeadlineExceeded,
                                          ErrorCode::kPoolLost}));
  reply.request = second;
  EXPECT_FALSE(calls.answer("a", reply));
  EXPECT_EQ(calls.size(), 0U);
}

}  // namespace
}  // namespace tributary
