// One rank alone; whole pools are in tests/deploy/pool_*_test.cc.
#include "core/round/round.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "comm/local/self_communicator.h"
#include "core/base/elements.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/round/idle_client.h"

namespace tributary {
namespace {

constexpr AttentionShape kShape{.heads = 2,
                                .kv_lora_rank = 6,
                                .qk_rope_head_dim = 2,
                                .row_format = RowFormat::kBF16,
                                .query_dtype = DType::kF32,
                                .softmax_scale = 1};

TEST(AttentionShape, GivesTheSizesOfRecords) {
  EXPECT_EQ(kShape.latent_dim(), 8);
  EXPECT_EQ(kShape.query_bytes(), 2U * 8 * 4);
  EXPECT_EQ(kShape.token_record_bytes(), 2U * 8 * 4 + 8 * 2);
  EXPECT_EQ(kShape.state_shape().record_bytes(), 2U * 7 * 4);
}

TEST(Phase, HasAName) {
  std::set<std::string_view> names;
  for (std::size_t p = 0; p < kPhases; ++p) names.insert(phase_name(static_cast<Phase>(p)));
  EXPECT_EQ(names.size(), kPhases);
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(PhaseTimer, AddsToItsPhaseAlone) {
  PhaseTimes times{};
  times[static_cast<std::size_t>(Phase::kAttend)] = 1e6;
  { const PhaseTimer timer(times, Phase::kAttend); }
  EXPECT_GE(times[static_cast<std::size_t>(Phase::kAttend)], 1e6);
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (static_cast<Phase>(p) != Phase::kAttend) {
      EXPECT_EQ(times[p], 0);
    }
  }
}

/// Every token's query and row are ones.
class OnesClient final : public IdleClient {
 public:
  void write_tokens(std::span<const HomedItem> items, std::span<const std::int32_t> item_layer,
                    std::byte* records, std::size_t record_bytes) override {
    ++writes;
    layer = item_layer[0];
    if (fails) throw std::runtime_error("no tokens");
    for (const HomedItem& item : items) {
      for (std::int32_t t = 0; t < item.tokens; ++t) {
        std::byte* record =
            records + static_cast<std::size_t>(item.token_record + t) * record_bytes;
        store_elements(kShape.query_dtype, std::vector<float>(16, 1), record);
        kShape.row().encode(std::vector<float>(8, 1), record + kShape.query_bytes());
      }
    }
  }
  void read_states(std::span<const HomedItem>, std::span<const std::int32_t>,
                   const float*) override {
    ADD_FAILURE() << "the worker reads states, once all ranks have succeeded";
  }

  bool fails = false;
  int writes = 0;
  std::int32_t layer = -1;
};

class RoundExecutorTest : public testing::Test {
 protected:
  RoundExecutorTest() {
    table_.apply(AdmitOp{{.id = 1, .epoch = 1, .limit_tokens = 100, .leaves = {{0, {}}, {0, {}}}}});
    table_.apply(ExtendOp{1, 0, 0, {2}});
    build_routing(table_, std::vector<StepItem>{next_item(table_.at(1), 3)}, 1, routing_);
    PlanBuilder(1, 0, 64).build(routing_, Exchange::kAllToAll, plan_);
  }

  Status run(Status& failure) {
    return executor_.run(plan_, std::vector<std::int32_t>{1}, client_,
                         Deadline::after(std::chrono::hours(1)), failure, times_);
  }

  std::unique_ptr<Communicator> communicator_ = make_self_communicator();
  std::unique_ptr<Backend> backend_ = make_reference_backend();
  std::unique_ptr<Cache> cache_ = backend_->make_cache({.layers = 2,
                                                        .pages = 3,
                                                        .kv_lora_rank = kShape.kv_lora_rank,
                                                        .qk_rope_head_dim = kShape.qk_rope_head_dim,
                                                        .row_format = kShape.row_format});
  RoundExecutor executor_{kShape, *backend_, *communicator_, *cache_};
  OnesClient client_;
  SequenceTable table_{64};
  Routing routing_;
  RankPlan plan_;
  PhaseTimes times_{};
};

TEST_F(RoundExecutorTest, AttendsTheTokensThatTheClientWrites) {
  Status failure;
  EXPECT_TRUE(run(failure).ok());
  EXPECT_TRUE(failure.ok()) << failure.message();
  EXPECT_EQ(client_.layer, 1);
  EXPECT_EQ(executor_.exchanged_bytes(), 0U);
  ASSERT_EQ(plan_.homed.size(), 1U);
  for (std::int64_t t = 0; t < 3; ++t) {
    const float* state = executor_.states() + (plan_.homed[0].state + t) * 14;
    for (int i = 0; i < 12; ++i) EXPECT_EQ(state[i], 1.0F) << "the mean of ones";
    // t + 1 rows with a score of 8 each.
    const auto lse = static_cast<float>(8 + std::log(static_cast<double>(t + 1)));
    EXPECT_EQ(state[12], lse);
    EXPECT_EQ(state[13], lse);
  }
}

TEST_F(RoundExecutorTest, KeepsAFailureOfItsClientToItself) {
  client_.fails = true;
  Status failure;
  EXPECT_TRUE(run(failure).ok()) << "the collectives went well";
  EXPECT_EQ(failure.code(), ErrorCode::kInternal);
  EXPECT_EQ(failure.message(), "no tokens");
  EXPECT_FALSE(communicator_->poisoned());
}

TEST_F(RoundExecutorTest, DoesNothingOfItsOwnAfterAFailure) {
  Status failure(ErrorCode::kIo, "earlier");
  EXPECT_TRUE(run(failure).ok());
  EXPECT_EQ(client_.writes, 0);
  EXPECT_EQ(failure.message(), "earlier") << "the first failure is kept";
}

TEST_F(RoundExecutorTest, ABackendThatRefusesIsAFailureToo) {
  plan_.tasks[0].rows = -1;
  Status failure;
  EXPECT_TRUE(run(failure).ok());
  EXPECT_EQ(failure.code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace tributary
