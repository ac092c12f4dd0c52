// A layer in steady state allocates nothing: the same calls with other plan data, again and again.
// Its own program, since it counts every allocation of the process.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>
#include <variant>
#include <vector>

#include "comm/local/self_communicator.h"
#include "core/layer/mla_layer.h"
#include "core/round/round.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/interface/device_backend.h"
#include "tests/core/layer/random_layer.h"
#include "tests/core/round/idle_client.h"

namespace {

std::atomic<std::int64_t> allocations{0};

}  // namespace

// Not inlined: GCC warns of free() where it sees new and free() side by side.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace tributary {
namespace {

constexpr int kWarmUp = 3;  // a list is made, then recorded, then refilled

/// Takes calls and does nothing, so that only the allocations of core are counted.
class IdleBackend final : public test::DeviceBackend {
 public:
  explicit IdleBackend(bool records) : DeviceBackend(make_reference_backend()), records_(records) {}
  [[nodiscard]] std::unique_ptr<Buffer> allocate(std::size_t bytes) override {
    return inner().allocate(bytes);
  }
  void upload(std::byte* dst, std::span<const std::byte> src) override { inner().upload(dst, src); }
  void download(std::span<std::byte> dst, const std::byte* src) override {
    inner().download(dst, src);
  }
  void replay(const Recording& /*recording*/) override { ++work; }

  int work = 0;  // calls and replays

 private:
  struct Nothing final : Recording {};
  [[nodiscard]] bool do_call(const Call& call) override {
    ++work;
    return !std::holds_alternative<LatentRowsArgs>(call);
  }
  [[nodiscard]] std::unique_ptr<Recording> do_record(std::span<const Call> /*calls*/) override {
    if (!records_) return nullptr;
    return std::make_unique<Nothing>();
  }
  [[nodiscard]] bool do_refill(Recording& /*recording*/, std::span<const Call> /*calls*/) override {
    return true;
  }

  bool records_;
};

/// Whether the backend records.
class SteadyState : public testing::TestWithParam<bool> {
 protected:
  /// Allocations of work(turn) after the warm-up.
  template <typename Work>
  static std::int64_t allocations_of(const Work& work) {
    for (int turn = 0; turn < kWarmUp; ++turn) work(turn);
    const std::int64_t before = allocations;
    EXPECT_GT(before, 0) << "they are counted";
    for (int turn = kWarmUp; turn < 3 * kWarmUp; ++turn) work(turn);
    return allocations - before;
  }

  IdleBackend backend_{GetParam()};
};

TEST_P(SteadyState, ARoundAllocatesNothing) {
  constexpr AttentionShape kShape{.heads = 2,
                                  .kv_lora_rank = 6,
                                  .qk_rope_head_dim = 2,
                                  .row_format = RowFormat::kBF16,
                                  .query_dtype = DType::kF32,
                                  .softmax_scale = 1};
  constexpr int kLeafTokens = 64;
  SequenceTable table(kLeafTokens);
  table.apply(AdmitOp{{.id = 1,
                       .epoch = 1,
                       .prompt_tokens = kLeafTokens - 1,
                       .limit_tokens = 2 * kLeafTokens,
                       .length = kLeafTokens - 1,
                       .leaves = {{0, {2}}, {0, {}}}}});
  table.apply(ExtendOp{1, 1, 0, {1}});
  Routing routing;
  build_routing(table, std::vector<StepItem>{next_item(table.at(1), 2)}, 1, routing);
  RankPlan plan;
  PlanBuilder(1, 0, kLeafTokens).build(routing, Exchange::kAllToAll, plan);
  ASSERT_FALSE(plan.appends.empty());
  ASSERT_GT(plan.tasks.size(), 1U) << "something to merge";

  const auto communicator = make_self_communicator();
  const auto cache = backend_.make_cache({.layers = 2,
                                          .pages = 3,
                                          .kv_lora_rank = kShape.kv_lora_rank,
                                          .qk_rope_head_dim = kShape.qk_rope_head_dim,
                                          .row_format = kShape.row_format});
  RoundExecutor executor(kShape, backend_, *communicator, *cache);
  IdleClient client;
  PhaseTimes times{};
  const std::int64_t allocated = allocations_of([&](int turn) {
    const std::array<std::int32_t, 1> item_layer{turn % 2};
    Status failure;
    const Status status = executor.run(plan, item_layer, client,
                                       Deadline::after(std::chrono::minutes(1)), failure, times);
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_TRUE(failure.ok()) << failure.message();
  });
  EXPECT_EQ(allocated, 0);
  EXPECT_GT(backend_.work, 0);
}

TEST_P(SteadyState, ALayersProjectionsAllocateNothing) {
  constexpr std::int64_t kTokens = 2;
  const ModelShape shape = test::odd_shape(/*q_lora_rank=*/31);
  MlaLayer layer(
      backend_, shape, test::random_weights(shape, 1),
      std::make_shared<MlaWorkspace>(backend_, shape,
                                     MlaWorkspaceOptions{.max_tokens = kTokens, .prefill = false}));
  const std::int64_t heads = shape.num_attention_heads;
  const StateShape state{static_cast<int>(heads), static_cast<int>(shape.kv_lora_rank)};
  const auto floats = [&](std::int64_t count) {
    return backend_.allocate(static_cast<std::size_t>(count) * sizeof(float));
  };
  const auto hidden = floats(kTokens * shape.hidden_size);
  const auto queries = floats(kTokens * heads * shape.latent_dim());
  const auto rows = floats(kTokens * shape.latent_dim());
  const auto states = floats(kTokens * static_cast<std::int64_t>(state.record_floats()));
  const std::int64_t allocated = allocations_of([&](int turn) {
    const std::array<std::int64_t, kTokens> positions{turn, 2 * turn};
    layer.project(kTokens, hidden->as<float>(), positions, queries->as<float>(), rows->as<float>());
    layer.output(kTokens, states->as<float>(), hidden->as<float>());
  });
  EXPECT_EQ(allocated, 0);
  EXPECT_GT(backend_.work, 0);
}

INSTANTIATE_TEST_SUITE_P(Backends, SteadyState, testing::Bool(), [](const auto& backend) {
  return backend.param ? "Records" : "DoesNotRecord";
});

}  // namespace
}  // namespace tributary
