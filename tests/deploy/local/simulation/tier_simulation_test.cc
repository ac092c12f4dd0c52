// A tier of threads, in simulated time and from one seed: leader, homes, collectives, data plane,
// control plane and clients as in a process, among delays, stalls, cut connections and killed
// processes. A seed repeats its run bit by bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "core/base/hash.h"
#include "tests/deploy/local/simulation/seeded_tier.h"

namespace {

/// The state of the process's random bytes: those of a run come from its seed.
std::uint64_t random_state = 0;

}  // namespace

/// Instead of OpenSSL's: tokens, nonces and numbers of the product come from here.
extern "C" int RAND_bytes(unsigned char* bytes, int count) {
  for (int i = 0; i < count; ++i) {
    random_state += tributary::kGoldenGamma;
    bytes[i] = static_cast<unsigned char>(tributary::mix64(random_state));
  }
  return 1;
}

namespace tributary::test {
namespace {

class TierSimulation : public testing::TestWithParam<std::uint64_t> {
 protected:
  /// Not destroyed: threads that were killed use it.
  static const SeededTier& run(std::uint64_t seed) {
    static auto& all = *new std::vector<std::unique_ptr<SeededTier>>;
    random_state = seed;
    all.push_back(std::make_unique<SeededTier>(seed));
    all.back()->run();
    return *all.back();
  }
};

TEST_P(TierSimulation, NothingAcknowledgedIsLostAndTheSeedRepeatsItsRun) {
  const SeededTier& first = run(GetParam());
  fmt::print(
      "seed {}: {} workers, {}, {} others killed, {} came in their places, {} rows pushed again, "
      "{} events, {} faults, {} "
      "rows shared, {} forks, {} times emptied, "
      "{} orders, {} turns, {:.1f} s, digest {:016x}\n",
      GetParam(), first.workers(), first.leader_killed() ? "the leader killed" : "the leader lives",
      first.lost_workers(), first.newcomers(), first.rows_again(), first.events(), first.faults(),
      first.present_tokens(), first.forks(), first.emptied(), first.orders(), first.turns(),
      first.simulated_seconds(), first.digest());
  EXPECT_GE(first.events(), 1000);
  EXPECT_GE(first.faults(), 50);
  if (HasFailure()) return;
  const SeededTier& again = run(GetParam());
  EXPECT_EQ(again.digest(), first.digest());
  EXPECT_EQ(again.events(), first.events());
  EXPECT_EQ(again.faults(), first.faults());
}

/// TRIBUTARY_SIMULATION_SEEDS of them: by default as many as it has kinds of ends.
std::uint64_t seeds() {
  const char* const text = std::getenv("TRIBUTARY_SIMULATION_SEEDS");
  return text == nullptr ? 4 : std::stoull(text);
}

INSTANTIATE_TEST_SUITE_P(Seeds, TierSimulation, testing::Range<std::uint64_t>(0, seeds()));

}  // namespace
}  // namespace tributary::test
