// Workers that differ do not become a pool, and each learns why.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/local/run_ranks.h"
#include "comm/local/self_communicator.h"
#include "core/pool/pool_worker.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "tests/core/base/expect_error.h"
#include "tests/core/round/idle_client.h"
#include "tests/deploy/pool/hooked_backend.h"

namespace tributary {
namespace {

constexpr int kRanks = 3;

WorkerConfig good_config() {
  return {.attention = {.heads = 2,
                        .kv_lora_rank = 16,
                        .qk_rope_head_dim = 8,
                        .row_format = RowFormat::kBF16,
                        .query_dtype = DType::kBF16,
                        .softmax_scale = 0.5F},
          .layers = 1,
          .pages = 4,
          .leaf_tokens = 64};
}

struct Difference {
  std::string_view name;
  int rank;
  std::function<void(WorkerConfig&)> change;
  ErrorCode code;
  std::string_view message;
};

/// The error of each rank's set-up; ranks that succeed have none.
std::vector<Status> set_up(const std::function<void(int rank, WorkerConfig&)>& change,
                           const std::function<std::unique_ptr<Backend>(int rank)>& make,
                           const std::function<void(int rank, std::string_view call)>& hook) {
  std::vector<Status> statuses(kRanks);
  run_ranks(kRanks, [&](Communicator& communicator) {
    const int rank = communicator.rank();
    const auto inner = make(rank);
    HookedBackend backend(*inner, 0, [&](std::string_view call) { hook(rank, call); });
    IdleClient client;
    IngestTable ingest(rank, good_config().layers, good_config().leaf_tokens);
    WorkerConfig config = good_config();
    change(rank, config);
    statuses[static_cast<std::size_t>(rank)] =
        status_of([&] { const Worker worker(config, backend, communicator, client, ingest); });
  });
  return statuses;
}

const auto kMakeReference = [](int) { return make_reference_backend(); };
const auto kNoChange = [](int, WorkerConfig&) {};
const auto kNoHook = [](int, std::string_view) {};

void expect_all(const std::vector<Status>& statuses, ErrorCode code, std::string_view message) {
  for (const Status& status : statuses) {
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.message(), message);
  }
}

TEST(PoolHandshake, EqualWorkersBecomeAPool) {
  expect_all(set_up(kNoChange, kMakeReference, kNoHook), ErrorCode::kOk, "");
}

class PoolDifference : public testing::TestWithParam<Difference> {};

TEST_P(PoolDifference, IsToldToEveryWorker) {
  const auto change = [](int rank, WorkerConfig& config) {
    if (rank == GetParam().rank) GetParam().change(config);
  };
  expect_all(set_up(change, kMakeReference, kNoHook), GetParam().code, GetParam().message);
}

constexpr ErrorCode kBad = ErrorCode::kInvalidArgument;

INSTANTIATE_TEST_SUITE_P(
    Unequal, PoolDifference,
    testing::Values(
        Difference{"Heads", 1, [](WorkerConfig& c) { c.attention.heads = 3; }, kBad,
                   "heads is 2 on worker 0 and 3 on worker 1"},
        Difference{"Rank", 2, [](WorkerConfig& c) { c.attention.kv_lora_rank = 32; }, kBad,
                   "kv_lora_rank is 16 on worker 0 and 32 on worker 2"},
        Difference{"Rope", 0, [](WorkerConfig& c) { c.attention.qk_rope_head_dim = 4; }, kBad,
                   "qk_rope_head_dim is 4 on worker 0 and 8 on worker 1"},
        Difference{"RowType", 1, [](WorkerConfig& c) { c.attention.row_format = RowFormat::kF32; },
                   kBad, "row_dtype is bf16 on worker 0 and f32 on worker 1"},
        Difference{"QueryType", 1, [](WorkerConfig& c) { c.attention.query_dtype = DType::kF32; },
                   kBad, "query_dtype is bf16 on worker 0 and f32 on worker 1"},
        Difference{"Scale", 2, [](WorkerConfig& c) { c.attention.softmax_scale = 0.25F; }, kBad,
                   "softmax_scale is 0.5 on worker 0 and 0.25 on worker 2"},
        Difference{"Leaf", 1, [](WorkerConfig& c) { c.leaf_tokens = 128; }, kBad,
                   "leaf_tokens is 64 on worker 0 and 128 on worker 1"},
        Difference{"Layers", 1, [](WorkerConfig& c) { c.layers = 2; }, kBad,
                   "layers is 1 on worker 0 and 2 on worker 1"},
        Difference{"Pages", 1, [](WorkerConfig& c) { c.pages = 5; }, kBad,
                   "pages is 4 on worker 0 and 5 on worker 1"},
        Difference{"Exchange", 1, [](WorkerConfig& c) { c.exchange = Exchange::kAllGather; }, kBad,
                   "exchange is auto on worker 0 and all-gather on worker 1"}),
    [](const auto& info) { return std::string(info.param.name); });

INSTANTIATE_TEST_SUITE_P(
    Impossible, PoolDifference,
    testing::Values(
        Difference{"NoHeads", 1, [](WorkerConfig& c) { c.attention.heads = 0; }, kBad,
                   "worker 1: heads is 0, expected at least 1"},
        Difference{"QueryType", 2, [](WorkerConfig& c) { c.attention.query_dtype = DType::kF64; },
                   kBad, "worker 2: query type is f64, expected bf16 or f32"},
        Difference{"RowType", 2, [](WorkerConfig& c) { c.attention.row_format = RowFormat{9}; },
                   kBad, "worker 2: row format 9 is none of bf16, f32, fp8_ds_mla, fp8"},
        Difference{"Scale", 0, [](WorkerConfig& c) { c.attention.softmax_scale = 0; }, kBad,
                   "worker 0: softmax_scale is 0, expected positive and finite"},
        Difference{"Leaf", 1, [](WorkerConfig& c) { c.leaf_tokens = 100; }, kBad,
                   "worker 1: leaf_tokens is 100, expected a power-of-two multiple of the page (64 "
                   "tokens)"},
        Difference{"NoPages", 1, [](WorkerConfig& c) { c.pages = 0; }, kBad,
                   "worker 1: cache: pages is 0, must be 1 to 2147483647"},
        Difference{"NoLayers", 1, [](WorkerConfig& c) { c.layers = 0; }, kBad,
                   "worker 1: cache: layers is 0, must be 1 to 1048576"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(PoolHandshake, OtherKernelsAreOtherBits) {
  const std::string_view narrowest = cpu_instruction_sets().back();
  const auto make = [&](int rank) {
    return rank == 2 ? make_reference_backend()
                     : make_cpu_backend({.threads = 1, .instruction_set = std::string(narrowest)});
  };
  expect_all(set_up(kNoChange, make, kNoHook), ErrorCode::kInvalidArgument,
             fmt::format("worker 0 computes with cpu/{} and worker 2 with reference: their bits "
                         "would differ",
                         narrowest));
}

TEST(PoolHandshake, AWorkerWithoutMemoryIsNamed) {
  const auto hook = [](int rank, std::string_view call) {
    if (rank == 1 && call == "allocate") fail(ErrorCode::kPoolFull, "no memory for the arenas");
  };
  expect_all(set_up(kNoChange, kMakeReference, hook), ErrorCode::kPoolFull,
             "worker 1: no memory for the arenas");
}

TEST(PoolHandshake, AWorkerMayTakeLongerForItsMemoryThanForARound) {
  constexpr std::chrono::milliseconds kRound{50};
  const auto change = [&](int, WorkerConfig& config) { config.round_timeout = kRound; };
  const auto hook = [&](int rank, std::string_view call) {
    if (rank == 1 && call == "allocate") std::this_thread::sleep_for(3 * kRound);
  };
  expect_all(set_up(change, kMakeReference, hook), ErrorCode::kOk, "");
}

TEST(PoolHandshake, OnlyWorker0LeadsAndOverAChannelAlone) {
  const auto communicator = make_self_communicator();
  const auto backend = make_reference_backend();
  IdleClient client;
  IngestTable ingest(0, good_config().layers, good_config().leaf_tokens);
  Worker worker(good_config(), *backend, *communicator, client, ingest);
  EXPECT_EQ(code_of([&] { (void)worker.follow(); }), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code_of([&] { (void)worker.lead(Order{}); }), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(worker.perform(Order{}).status.ok());
  EXPECT_EQ(worker.table().size(), 0U);
}

}  // namespace
}  // namespace tributary
