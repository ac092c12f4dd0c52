// Rounds that an engine includes in its own step: all layers of a step without a wait, the same
// bits as rounds one by one, and a refusal if a step does not fit the recording.
#include "core/round/recorded_round.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "core/base/error.h"
#include "tests/core/round/ordered_rank.h"

namespace tributary {
namespace {

using test::kLayers;
using test::kOrderedShape;
using test::on_ranks;
using test::Pieces;
using test::Rank;
using test::States;

/// Indices into kSteps: some alike, a larger one, and that one again.
const std::vector<std::size_t> kEngineSteps{0, 0, 0, 1, 1};

Deadline soon() {
  return Deadline::after(std::chrono::minutes(1));
}

/// The states of rounds that run one by one on one rank.
States one_by_one() {
  States states;
  on_ranks(1, Pieces::kPlain, Exchange::kAllToAll, [&](Rank& rank) {
    for (const std::size_t step : kEngineSteps) {
      rank.begin_step(step);
      for (int layer = 0; layer < kLayers; ++layer) {
        EXPECT_TRUE(rank.run(layer).ok());
        rank.read(layer, states);
      }
      rank.end_step();
    }
  });
  return states;
}

/// An engine on one rank. Its "graph" is the order of its calls.
class Engine {
 public:
  explicit Engine(Rank& rank) : rank_(rank) {}

  /// Whether the last step's recordings could be refilled; otherwise records anew.
  bool prepare() {
    bool fits = !rounds_.empty();
    for (std::size_t l = 0; fits && l < rounds_.size(); ++l) {
      fits = rounds_[l].refill(rank_.plan(), layer(l));
    }
    if (fits) return true;
    rounds_.clear();
    for (std::size_t l = 0; l < kLayers; ++l) {
      rounds_.emplace_back(rank_.executor().program(), rank_.plan(), layer(l));
    }
    return false;
  }
  /// All layers, then one wait.
  void step(std::mutex& mutex, States& states) {
    const RankPlan& plan = rank_.plan();
    const std::size_t record = kOrderedShape.state_shape().record_bytes();
    std::vector<std::int64_t> index(static_cast<std::size_t>(plan.out_states));
    std::iota(index.begin(), index.end(), plan.out_begin());
    std::vector<std::unique_ptr<Buffer>> outputs;
    for (std::size_t l = 0; l < kLayers; ++l) {
      outputs.push_back(rank_.backend().allocate(record * (index.size() + 1)));
    }
    const int waits = rank_.queue().waits();
    for (std::size_t l = 0; l < kLayers; ++l) {
      if (!plan.homed.empty()) {
        rank_.client().write_tokens(plan.homed, layer(l), rank_.executor().program().tokens(),
                                    kOrderedShape.token_record_bytes());
      }
      const Status status = rounds_[l].enqueue(soon());
      EXPECT_TRUE(status.ok()) << status.message();
      rank_.backend().call(
          GatherArgs{index, reinterpret_cast<const std::byte*>(rank_.executor().program().states()),
                     outputs[l]->data(), record});
    }
    EXPECT_EQ(rank_.queue().waits(), waits) << "nothing waits inside a step";
    EXPECT_TRUE(rank_.ordered().complete(soon()).ok());
    rank_.backend().synchronize(soon());
    const std::lock_guard lock(mutex);
    for (std::size_t l = 0; l < kLayers; ++l) {
      for (const HomedItem& item : plan.homed) {
        std::vector<std::byte> bytes(static_cast<std::size_t>(item.tokens) * record);
        rank_.backend().download(
            bytes,
            outputs[l]->data() + static_cast<std::size_t>(item.state - plan.out_begin()) * record);
        states[{static_cast<int>(l), item.id, item.position}] = std::move(bytes);
      }
    }
  }

 private:
  [[nodiscard]] std::vector<std::int32_t> layer(std::size_t l) const {
    return rank_.item_layer(static_cast<int>(l));
  }

  Rank& rank_;
  std::vector<RecordedRound> rounds_;
};

class RecordedRounds : public testing::TestWithParam<std::tuple<int, Exchange>> {
 protected:
  [[nodiscard]] static int ranks() { return std::get<0>(GetParam()); }
  [[nodiscard]] static Exchange exchange() { return std::get<1>(GetParam()); }
};

TEST_P(RecordedRounds, OfAnEnginesStepsComeToTheBitsOfRoundsOneByOne) {
  States states;
  std::mutex mutex;
  on_ranks(ranks(), Pieces::kRecorded, exchange(), [&](Rank& rank) {
    Engine engine(rank);
    std::vector<bool> served;
    for (const std::size_t step : kEngineSteps) {
      rank.begin_step(step);
      served.push_back(engine.prepare());
      engine.step(mutex, states);
      rank.end_step();
    }
    const std::vector<bool> alike(served.begin(), served.begin() + 3);
    EXPECT_EQ(alike, (std::vector<bool>{false, true, true})) << rank.rank();
    EXPECT_FALSE(served[3] && ranks() > 1) << "other records travel";
  });
  EXPECT_EQ(states, one_by_one());
}

TEST_P(RecordedRounds, WithoutRecordingsOrAnOrderedCommunicatorAreRefused) {
  for (const Pieces pieces : {Pieces::kPlain, Pieces::kDeferredBackend, Pieces::kDeferred}) {
    on_ranks(ranks(), pieces, exchange(), [&](Rank& rank) {
      rank.begin_step(1);
      const Status status = status_of(
          [&] { RecordedRound(rank.executor().program(), rank.plan(), rank.item_layer(0)); });
      const bool host_waits = ranks() > 1 && !test::is_ordered(pieces);
      EXPECT_EQ(status.code(),
                host_waits ? ErrorCode::kFailedPrecondition : ErrorCode::kUnsupported)
          << status.message();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(, RecordedRounds, test::kRanksAndExchanges, test::ranks_and_exchange);

}  // namespace
}  // namespace tributary
