#include "deploy/service/control/pool_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "tests/core/base/expect_error.h"
#include "tests/deploy/service/protocol/pool_samples.h"

namespace tributary {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

const Time kRegistryStart{std::chrono::hours(1)};

RegisterPool registration(const std::string& name, const std::string& run = "run") {
  RegisterPool about;
  about.name = name;
  about.run = run;
  about.shape = sample_shape();
  about.pages_per_worker = 100;
  about.lease_ms = 1000;
  about.workers = {{0, "host", "address", "cpu"}, {1, "host", "address", "cpu"}};
  return about;
}

SequenceInfo sequence(SequenceId id, std::int64_t prompt_tokens = 64) {
  SequenceInfo info;
  info.id = id;
  info.prompt_tokens = prompt_tokens;
  info.extents = {{0, prompt_tokens, 0}};
  return info;
}

Heartbeat heartbeat(int used, bool draining = false) {
  Heartbeat beat;
  beat.draining = draining;
  beat.workers = {{0, used, 0, 0, 0}, {1, used, 0, 0, 0}};
  return beat;
}

TEST(SequenceIds, AreOfTheIncarnation) {
  SequenceIds ids(7);
  EXPECT_EQ(ids.next(), (SequenceId{7} << 32) | 1);
  EXPECT_EQ(ids.next(), (SequenceId{7} << 32) | 2);
  EXPECT_TRUE(ids.gave((SequenceId{7} << 32) | 2));
  EXPECT_FALSE(ids.gave((SequenceId{7} << 32) | 3));
  EXPECT_FALSE(ids.gave((SequenceId{6} << 32) | 1));
  ids.pass(6);
  EXPECT_EQ(ids.incarnation(), 7U);
  ids.pass(7);
  EXPECT_EQ(ids.next(), (SequenceId{8} << 32) | 1);
}

/// Numbers near the largest, which a clock far ahead gives, leave room for all that follow.
TEST(SequenceIds, LieOnACircle) {
  SequenceIds ids(8);
  ids.pass(0xffffffff);
  EXPECT_EQ(ids.incarnation(), 8U) << "it is earlier";
  ids.pass(0x80000000);
  EXPECT_EQ(ids.incarnation(), 0x80000001U);
  ids.pass(0xffffffff);
  EXPECT_EQ(ids.incarnation(), 1U) << "0 means none";
}

TEST(SequenceIds, RiseWithTheClock) {
  using Clock = std::chrono::system_clock;
  const Clock::time_point in_2026{std::chrono::seconds(1'767'225'600)};
  EXPECT_EQ(incarnation_at(in_2026), 2U * 365 * 24 * 3600 * 4 + 24 * 3600 * 4);
  EXPECT_EQ(incarnation_at(in_2026 + std::chrono::milliseconds(250)), incarnation_at(in_2026) + 1);
  EXPECT_EQ(incarnation_at(Clock::time_point()), 1U) << "before its time";
}

TEST(PoolRegistry, KnowsAPoolAndItsSequences) {
  PoolRegistry registry(7);
  RegisterPool about = registration("a");
  about.sequences = {sequence(3), sequence(4)};
  registry.register_pool(about, kRegistryStart);
  EXPECT_TRUE(any_serving(registry));
  EXPECT_EQ(*registry.pool_of(3), "a");
  EXPECT_EQ(sequences_of(registry), 2U);
  // Counted from the sequences until the first heartbeat.
  EXPECT_EQ(registry.find("a")->free_pages(), 198);
  registry.heartbeat("a", heartbeat(10), kRegistryStart);
  EXPECT_EQ(registry.find("a")->free_pages(), 180);
  registry.end_sequence(3, SequenceEnd::kFreed, kRegistryStart);
  EXPECT_EQ(registry.pool_of(3), nullptr);
  EXPECT_EQ(registry.end_of(3), SequenceEnd::kFreed);
  registry.end_sequence(99, SequenceEnd::kFreed, kRegistryStart);
  EXPECT_EQ(registry.end_of(99), std::nullopt);
}

TEST(PoolRegistry, PagesOfAWorkerThatIsEmptiedAreNotFree) {
  PoolRegistry registry(7);
  registry.register_pool(registration("a"), kRegistryStart);
  Heartbeat beat = heartbeat(10);
  beat.workers[1].draining = true;
  registry.heartbeat("a", beat, kRegistryStart);
  EXPECT_EQ(registry.find("a")->free_pages(), 90);
}

TEST(PoolRegistry, CountsPagesThatNoHeartbeatHasSeen) {
  PoolRegistry registry(7);
  registry.register_pool(registration("a"), kRegistryStart);
  registry.ask_pages("a", 30);
  EXPECT_EQ(registry.find("a")->free_pages(), 170);
  registry.heartbeat("a", heartbeat(0), kRegistryStart);
  // The question is not answered yet: the heartbeat may be older.
  EXPECT_EQ(registry.find("a")->free_pages(), 170);
  registry.ask_pages("a", -30);
  registry.add_sequence("a", 9, 30);
  EXPECT_EQ(registry.find("a")->free_pages(), 170);
  registry.heartbeat("a", heartbeat(15), kRegistryStart);
  EXPECT_EQ(registry.find("a")->free_pages(), 170);
  registry.ask_pages("a", 1000);
  EXPECT_EQ(registry.find("a")->free_pages(), 0);
}

TEST(PoolRegistry, LosesSilentPools) {
  PoolRegistry registry(7);
  RegisterPool about = registration("a");
  about.sequences = {sequence(3)};
  registry.register_pool(about, kRegistryStart);
  registry.register_pool(registration("b"), kRegistryStart);
  registry.heartbeat("b", heartbeat(0), kRegistryStart + milliseconds(1000));
  EXPECT_EQ(silent_pools(registry, kRegistryStart + milliseconds(500)),
            std::vector<std::string>{"a"});
  registry.lose("a", "silent", kRegistryStart + milliseconds(2000));
  EXPECT_EQ(registry.end_of(3), SequenceEnd::kPoolLost);
  EXPECT_EQ(registry.pool_of(3), nullptr);
  EXPECT_EQ(registry.ends().pools_lost, 1U);
  registry.lose("a", "again", kRegistryStart + milliseconds(2000));
  EXPECT_EQ(registry.ends().pools_lost, 1U);
  EXPECT_EQ(registry.find("a")->lost_because, "silent");
  EXPECT_EQ(code_of([&] { registry.add_sequence("a", 9); }), ErrorCode::kPoolLost);
}

TEST(PoolRegistry, ASilentPoolKeepsItsSequencesForAWhile) {
  const auto later = [](int ms) { return kRegistryStart + milliseconds(ms); };
  PoolRegistry registry(7);
  RegisterPool about = registration("a");
  about.sequences = {sequence(3), sequence(4)};
  registry.register_pool(about, kRegistryStart);
  registry.lose("a", "no heartbeat", later(1'500), later(15'000));
  EXPECT_EQ(registry.find("a")->state, PoolState::kLost);
  EXPECT_FALSE(any_serving(registry));
  EXPECT_EQ(*registry.pool_of(3), "a");
  EXPECT_TRUE(registry.lose_silent(later(14'999)).empty());
  about.sequences = {sequence(3)};
  registry.register_pool(about, later(3'200));
  EXPECT_EQ(registry.end_of(3), std::nullopt);
  EXPECT_EQ(registry.end_of(4), SequenceEnd::kFreed) << "it has ended meanwhile";
  EXPECT_TRUE(any_serving(registry));
  EXPECT_EQ(registry.ends().pools_lost, 0U) << "it has come back";

  registry.lose("a", "no heartbeat", later(5'000), later(20'000));
  registry.lose("a", "its connection ended", later(5'000), later(7'000));
  registry.lose("a", "and again", later(5'000), later(30'000));
  EXPECT_TRUE(registry.lose_silent(later(6'999)).empty());
  EXPECT_EQ(registry.ends().pools_lost, 0U) << "it may come back";
  EXPECT_EQ(registry.lose_silent(later(7'000)), std::vector<std::string>{"a"});
  EXPECT_EQ(registry.end_of(3), SequenceEnd::kPoolLost);
  EXPECT_TRUE(registry.lose_silent(later(60'000)).empty());
  EXPECT_EQ(registry.ends().pools_lost, 1U);
}

TEST(PoolRegistry, AnIdlePoolThatDoesNotComeBackIsLostToo) {
  const auto later = [](int ms) { return kRegistryStart + milliseconds(ms); };
  PoolRegistry registry(7);
  registry.register_pool(registration("a"), kRegistryStart);
  registry.lose("a", "no heartbeat", later(1'500), later(15'000));
  EXPECT_EQ(registry.lose_silent(later(15'000)), std::vector<std::string>{"a"});
  EXPECT_TRUE(registry.lose_silent(later(60'000)).empty());
  EXPECT_EQ(registry.ends().pools_lost, 1U);
  registry.register_pool(registration("a"), later(70'000));
  registry.lose("a", "gone", later(80'000));
  EXPECT_EQ(registry.ends().pools_lost, 2U);
}

TEST(PoolRegistry, AnotherRunEndsTheSequencesOfASilentPool) {
  PoolRegistry registry(7);
  RegisterPool about = registration("a");
  about.sequences = {sequence(3)};
  registry.register_pool(about, kRegistryStart);
  registry.lose("a", "no heartbeat", kRegistryStart, kRegistryStart + milliseconds(15'000));
  registry.register_pool(registration("a", "other"), kRegistryStart);
  EXPECT_EQ(registry.end_of(3), SequenceEnd::kPoolLost);
  EXPECT_EQ(registry.ends().pools_lost, 1U);
}

TEST(PoolRegistry, TheSameRunComesBackWithItsSequences) {
  PoolRegistry registry(7);
  RegisterPool about = registration("a");
  about.sequences = {sequence(3), sequence(4)};
  registry.register_pool(about, kRegistryStart);
  registry.lose("a", "gone", kRegistryStart);
  about.sequences = {sequence(4)};
  registry.register_pool(about, kRegistryStart);
  EXPECT_EQ(registry.end_of(3), SequenceEnd::kPoolLost);
  EXPECT_EQ(registry.end_of(4), std::nullopt);
  EXPECT_EQ(*registry.pool_of(4), "a");
}

TEST(PoolRegistry, AnotherRunTakesTheNameOfALostPoolAlone) {
  PoolRegistry registry(7);
  RegisterPool about = registration("a");
  about.sequences = {sequence(3)};
  registry.register_pool(about, kRegistryStart);
  const auto take_over = [&] {
    registry.register_pool(registration("a", "other"), kRegistryStart);
  };
  EXPECT_EQ(code_of(take_over), ErrorCode::kAlreadyExists);
  EXPECT_THAT(message_of(take_over), HasSubstr("another run of it serves"));
  EXPECT_EQ(*registry.pool_of(3), "a");
  registry.lose("a", "gone", kRegistryStart);
  registry.register_pool(registration("a", "other"), kRegistryStart);
  EXPECT_EQ(registry.find("a")->about.run, "other");
  EXPECT_EQ(registry.end_of(3), SequenceEnd::kPoolLost);
}

TEST(PoolRegistry, RefusesAnotherShapeUnlessItIsAlone) {
  PoolRegistry registry(7);
  registry.register_pool(registration("a"), kRegistryStart);
  RegisterPool other = registration("b");
  other.shape.softmax_scale = 0.5F;
  EXPECT_THAT(message_of([&] { registry.register_pool(other, kRegistryStart); }),
              HasSubstr("softmax_scale is 0.5, but pool a"));
  other = registration("b");
  other.shape.row_format = RowFormat::kF32;
  EXPECT_THAT(message_of([&] { registry.register_pool(other, kRegistryStart); }),
              HasSubstr("row_dtype is f32, but pool a of this tier has bf16"));
  registry.lose("a", "gone", kRegistryStart);
  registry.register_pool(other, kRegistryStart);
  EXPECT_TRUE(any_serving(registry));
  // A pool on which no sequence could be placed is refused.
  other = registration("c");
  registry.lose("b", "gone", kRegistryStart);
  other.shape.leaf_tokens = 100;
  EXPECT_EQ(code_of([&] { registry.register_pool(other, kRegistryStart); }),
            ErrorCode::kInvalidArgument);
}

TEST(PoolRegistry, RefusesASequenceOfAnotherPool) {
  PoolRegistry registry(7);
  RegisterPool about = registration("a");
  about.sequences = {sequence(3)};
  registry.register_pool(about, kRegistryStart);
  about.name = "b";
  EXPECT_EQ(code_of([&] { registry.register_pool(about, kRegistryStart); }),
            ErrorCode::kAlreadyExists);
  EXPECT_EQ(registry.find("b"), nullptr);
}

TEST(PoolRegistry, IdsPassWhatPoolsHaveSeen) {
  PoolRegistry registry(7);
  RegisterPool about = registration("a");
  about.last_incarnation = 7;
  registry.register_pool(about, kRegistryStart);
  EXPECT_EQ(registry.ids().incarnation(), 8U);
  about.last_incarnation = 8;  // it has that number from us
  registry.register_pool(about, kRegistryStart);
  EXPECT_EQ(registry.ids().incarnation(), 8U);
  about.sequences = {sequence(SequenceId{50} << 32)};
  registry.register_pool(about, kRegistryStart);
  EXPECT_EQ(registry.ids().incarnation(), 51U);
}

/// A control plane's clock may be days behind (a host before NTP) or years ahead, now or earlier: a
/// pool serves all the same, and no id is given twice.
TEST(PoolRegistry, APoolServesWhateverTheClocksSaid) {
  for (const std::uint32_t earlier : {366'000'000U, 1'000'000'000U, 0xfffffffeU, 0xffffffffU}) {
    for (const std::uint32_t ours : {1U, 366'000'100U}) {
      for (const bool holds : {false, true}) {
        PoolRegistry registry(ours);
        RegisterPool about = registration("a");
        about.last_incarnation = earlier;
        const SequenceId held = (SequenceId{earlier} << 32) | 1;
        if (holds) about.sequences = {sequence(held)};
        registry.register_pool(about, kRegistryStart);
        EXPECT_EQ(registry.find("a")->state, PoolState::kServing);
        const SequenceId next = registry.ids().next();
        EXPECT_NE(next, held);
        EXPECT_NE(next >> 32, earlier);
      }
    }
  }
}

TEST(PoolRegistry, FollowsDraining) {
  PoolRegistry registry(7);
  registry.register_pool(registration("a"), kRegistryStart);
  registry.heartbeat("a", heartbeat(0, true), kRegistryStart);
  EXPECT_EQ(registry.find("a")->state, PoolState::kDraining);
  EXPECT_FALSE(any_serving(registry));
  registry.set_draining("a", false, kRegistryStart);
  EXPECT_TRUE(any_serving(registry));
  Heartbeat beat = heartbeat(0);
  beat.workers.pop_back();
  EXPECT_EQ(code_of([&] { registry.heartbeat("a", beat, kRegistryStart); }),
            ErrorCode::kMalformedInput);
}

TEST(PoolRegistry, KnowsWhoIsInThePlaceOfALostWorker) {
  PoolRegistry registry(7);
  registry.register_pool(registration("a"), kRegistryStart);
  const auto workers = static_cast<int>(registry.find("a")->about.workers.size());
  const std::string former = registry.find("a")->about.workers.back().address;
  WorkerInfo joined{.rank = workers - 1, .host = "h", .address = "tcp://10.9.9.9:1", .threads = 3};
  registry.worker_joined("a", joined);
  EXPECT_EQ(registry.find("a")->about.workers.back().address, "tcp://10.9.9.9:1");
  EXPECT_EQ(registry.find("a")->about.workers.back().threads, 3);
  // A handle from before still names one of the tier.
  EXPECT_THAT(worker_addresses(registry), testing::IsSupersetOf({former, joined.address}));
  for (const int rank : {-1, workers}) {
    joined.rank = rank;
    EXPECT_EQ(code_of([&] { registry.worker_joined("a", joined); }), ErrorCode::kMalformedInput);
  }
  joined.rank = 0;
  for (std::size_t i = 0; i < 2 * PoolRegistry::kMaxFormer; ++i) {
    joined.address = fmt::format("tcp://10.9.9.9:{}", 2 + i);
    registry.worker_joined("a", joined);
    registry.worker_joined("a", joined);  // and again where it was
  }
  registry.register_pool(registry.find("a")->about, kRegistryStart);  // on another connection
  EXPECT_EQ(registry.find("a")->former_addresses.size(), PoolRegistry::kMaxFormer);
}

TEST(PoolRegistry, ForgetsTheLongestLostPools) {
  PoolRegistry registry(7);
  for (std::size_t i = 0; i < PoolRegistry::kMaxPools; ++i) {
    registry.register_pool(registration(fmt::format("p{}", i)), kRegistryStart);
  }
  EXPECT_EQ(code_of([&] { registry.register_pool(registration("more"), kRegistryStart); }),
            ErrorCode::kPoolFull);
  registry.lose("p7", "gone", kRegistryStart + milliseconds(1));
  registry.lose("p3", "gone", kRegistryStart + milliseconds(2));
  registry.register_pool(registration("more"), kRegistryStart);
  EXPECT_EQ(registry.find("p7"), nullptr);
  EXPECT_NE(registry.find("p3"), nullptr);
}

TEST(EndedSequences, AreBounded) {
  EndedSequences ended(3);
  for (SequenceId id = 1; id <= 5; ++id) ended.add(id, SequenceEnd::kFreed);
  EXPECT_EQ(ended.size(), 3U);
  EXPECT_EQ(ended.find(2), std::nullopt);
  EXPECT_EQ(ended.find(3), SequenceEnd::kFreed);
  ended.add(3, SequenceEnd::kPoolLost);
  EXPECT_EQ(ended.find(3), SequenceEnd::kPoolLost);
  ended.erase(3);
  EXPECT_EQ(ended.find(3), std::nullopt);
  ended.add(3, SequenceEnd::kFreed);  // again, and now among the youngest
  ended.add(6, SequenceEnd::kFreed);
  EXPECT_EQ(ended.find(3), SequenceEnd::kFreed);
  for (int i = 0; i < 1000; ++i) {
    ended.add(9, SequenceEnd::kPoolLost);
    ended.erase(9);
  }
  EXPECT_LE(ended.size(), 3U);
}

}  // namespace
}  // namespace tributary
