// The host side of the CUDA backend beyond the conformance suite: memory of plan data, deadlines,
// errors of any call, threads, and destruction while work is pending. On the emulated device, which
// does nothing before somebody waits for it.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_devices.h"
#include "tests/core/base/expect_error.h"
#include "tests/kernels/cuda/runtime/emulated_device.h"
#include "tests/kernels/device_vectors.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {
namespace {

constexpr auto kTimeout = std::chrono::seconds(30);

/// Rotates (1, 0), `pairs` times, by position 1: the result is the cosines of the frequencies,
/// which are plan data. Much plan data for little work.
class Rotation {
 public:
  Rotation(Backend& backend, std::size_t pairs, std::uint32_t seed) : backend_(backend) {
    Normal normal(seed);
    for (const float value : normal.floats(pairs)) frequencies_.push_back(std::abs(value));
    std::vector<float> x(2 * pairs, 0.0F);
    for (std::size_t i = 0; i < x.size(); i += 2) x[i] = 1;
    x_ = on_device(backend, x);
    y_ = backend.allocate(x.size() * sizeof(float));
  }
  void enqueue() const {
    const std::int64_t position = 1;
    const auto dim = static_cast<std::int64_t>(2 * frequencies_.size());
    backend_.call(RopeArgs{.positions = std::span(&position, 1),
                           .frequencies = frequencies_,
                           .heads = 1,
                           .x = x_->as<float>(),
                           .x_token_stride = dim,
                           .x_head_stride = dim,
                           .y = y_->as<float>(),
                           .y_token_stride = dim,
                           .y_head_stride = dim});
  }
  /// How many cosines are not those of this rotation's frequencies.
  [[nodiscard]] std::size_t wrong() const {
    const auto y = fetch<float>(backend_, *y_);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < frequencies_.size(); ++i) {
      if (y[2 * i] != static_cast<float>(std::cos(frequencies_[i]))) ++wrong;
    }
    return wrong;
  }

 private:
  Backend& backend_;
  std::vector<double> frequencies_;
  std::unique_ptr<Buffer> x_, y_;
};

TEST(CudaHost, TheEmulatedDeviceIsWhatIsTested) {
  const auto backend = make_cuda_backend({});
  EXPECT_EQ(backend->name(), "cuda/Emulated/sm_80/cublaslt-1");
  EXPECT_FALSE(backend->host_memory());
  EXPECT_EQ(make_cuda_backend({.fast_merge_order = true})->name(),
            "cuda/Emulated/sm_80/cublaslt-1/fast");
  EXPECT_EQ(code_of([] { (void)make_cuda_backend({.device = 1}); }), ErrorCode::kInvalidArgument);
}

TEST(CudaHost, PlanDataOfManyCallsThatNobodyAwaitedIsItsOwn) {
  const auto backend = make_cuda_backend({});
  // 40 KiB to 180 KiB each, two rings in all: the ring goes round, and waits when it must.
  std::vector<std::unique_ptr<Rotation>> rotations;
  for (std::uint32_t call = 0; call < 100; ++call) {
    rotations.push_back(std::make_unique<Rotation>(*backend, 5000 + 113 * call, call));
  }
  const DeviceCounters before = device_counters();
  for (const auto& rotation : rotations) rotation->enqueue();
  const DeviceCounters after = device_counters();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_GT(after.busy_queries, before.busy_queries);  // the ring did wait
  EXPECT_GT(pending_work(cuda_stream(*backend)), 0U);  // but never for all work
  for (const auto& rotation : rotations) EXPECT_EQ(rotation->wrong(), 0U);
}

TEST(CudaHost, PlanDataThatOutgrowsTheRingIsItsOwn) {
  const auto backend = make_cuda_backend({});
  std::vector<std::unique_ptr<Rotation>> rotations;
  for (std::uint32_t call = 0; call < 8; ++call) {
    rotations.push_back(std::make_unique<Rotation>(*backend, std::size_t{2000} << call, call));
  }
  const DeviceCounters before = device_counters();
  for (const auto& rotation : rotations) {
    rotation->enqueue();
    rotations.front()->enqueue();  // small ones among them
  }
  EXPECT_GT(device_counters().allocations, before.allocations);  // it did grow
  for (const auto& rotation : rotations) EXPECT_EQ(rotation->wrong(), 0U);
}

TEST(CudaHost, AWaitBeyondItsDeadlineNamesWhatItWaitedFor) {
  const auto backend = make_cuda_backend({});
  const Rotation rotation(*backend, 64, 1);
  rotation.enqueue();
  {
    const StalledDevice stalled;
    const auto wait = [&] { backend->synchronize(Deadline::after(std::chrono::milliseconds(5))); };
    EXPECT_EQ(code_of(wait), ErrorCode::kDeadlineExceeded);
    EXPECT_EQ(message_of(wait).find("synchronize: not complete at the deadline"), 0U)
        << message_of(wait);
  }
  EXPECT_EQ(rotation.wrong(), 0U);  // the device was slow, but not wrong
}

TEST(CudaHost, MemoryOfADeviceThatMayHangIsLeftUntilTheWorkHasEnded) {
  const DeviceObjects before = device_objects();
  {
    const auto backend = make_cuda_backend({});
    const Rotation rotation(*backend, 64, 1);
    auto kept = backend->allocate(1 << 20);
    rotation.enqueue();
    std::size_t bytes = device_objects().device_bytes;
    {
      const StalledDevice stalled;
      EXPECT_EQ(
          code_of([&] { backend->synchronize(Deadline::after(std::chrono::milliseconds(1))); }),
          ErrorCode::kDeadlineExceeded);
      kept.reset();  // freeing it would wait for the device, for ever
      EXPECT_EQ(device_objects().device_bytes, bytes);
    }
    EXPECT_EQ(rotation.wrong(), 0U);  // a wait that succeeds: it was slow, no more
    kept = backend->allocate(1 << 20);
    bytes = device_objects().device_bytes;
    kept.reset();
    EXPECT_EQ(device_objects().device_bytes, bytes - (1 << 20));
  }
  EXPECT_EQ(device_objects().device_bytes, before.device_bytes + (1 << 20));
  EXPECT_EQ(device_objects().streams, before.streams);
}

/// A backend's whole end on a device that hangs, then the process's.
[[noreturn]] void end_on_a_device_that_hangs() {
  const StalledDevice stalled;
  auto backend = make_cuda_backend({});
  auto rotation = std::make_unique<Rotation>(*backend, 64, 1);
  const Status status = status_of([&] {
    rotation->enqueue();
    backend->synchronize(Deadline::after(std::chrono::milliseconds(1)));
  });
  rotation.reset();  // waiting for the device would take for ever
  backend.reset();
  std::_Exit(status.code() == ErrorCode::kDeadlineExceeded ? 0 : 1);
}

TEST(CudaHostDeathTest, ABackendEndsOnADeviceThatHangsAndSaysWhatItLeaves) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(end_on_a_device_that_hangs(), testing::ExitedWithCode(0),
              "missed a deadline and may hang: its memory is left");
}

TEST(CudaHost, AnEnginesCaptureInGlobalModeOutlivesWaitsAndAllocations) {
  const auto backend = make_cuda_backend({});
  const Rotation rotation(*backend, 64, 1);
  cudaStream_t engine = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&engine, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(engine, cudaStreamCaptureModeGlobal), cudaSuccess);
  rotation.enqueue();
  backend->synchronize(Deadline::after(kTimeout));
  (void)backend->allocate(100);  // and frees it
  EXPECT_EQ(rotation.wrong(), 0U);
  std::thread([&] { backend->synchronize(Deadline::after(kTimeout)); }).join();
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusInvalidated;
  EXPECT_EQ(cudaStreamIsCapturing(engine, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  // The thread's own mode is as it was: what it does itself is still found.
  void* memory = nullptr;
  EXPECT_NE(cudaMalloc(&memory, 1), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_NE(cudaStreamEndCapture(engine, &graph), cudaSuccess);
  (void)cudaGetLastError();
  EXPECT_EQ(cudaStreamDestroy(engine), cudaSuccess);
}

TEST(CudaHost, AWeightTakesAnAlgorithmThatIsOnlyListedWhereNoSuggestionTakesAllTiles) {
  const SelectiveProducts selective;
  const auto backend = make_cuda_backend({});
  constexpr std::int64_t kSize = 16;
  const std::vector<float> values = Normal(3).floats(kSize * kSize);
  const std::uint64_t before = device_counters().launches;
  const auto weight = backend->make_weight(
      {.data = values.data(), .rows = kSize, .cols = kSize, .row_stride = kSize});
  EXPECT_EQ(device_counters().launches - before, 3U);  // every tile's kernel is loaded
  const auto x = on_device(*backend, std::vector<float>(kSize, 1.0F));
  const auto y = backend->allocate(kSize * sizeof(float));
  backend->call(GemmArgs{.weight = weight.get(),
                         .tokens = 1,
                         .x = x->as<float>(),
                         .x_token_stride = kSize,
                         .y = y->as<float>(),
                         .y_token_stride = kSize});
  float sum = 0;
  for (std::int64_t i = 0; i < kSize; ++i) sum += values[static_cast<std::size_t>(i)];
  EXPECT_NEAR(fetch<float>(*backend, *y).front(), sum, 1e-5);
}

TEST(CudaHost, TimeBetweenMarksIsTheDevices) {
  const auto backend = make_cuda_backend({});
  const auto between = [&] { (void)backend->microseconds_between(0, 1); };
  EXPECT_EQ(code_of(between), ErrorCode::kInternal);  // never made
  backend->mark(0);
  ASSERT_EQ(enqueue_on(cuda_stream(*backend),
                       [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }),
            cudaSuccess);
  backend->mark(1);
  backend->synchronize(Deadline::after(kTimeout));
  const std::optional<double> microseconds = backend->microseconds_between(0, 1);
  ASSERT_TRUE(microseconds.has_value());
  EXPECT_GE(*microseconds, 2e3);
  EXPECT_LT(*microseconds, 2e7);  // of another unit it would be far beyond
}

/// Attention of `tokens` queries over one leaf, in the fast order: states.
std::vector<float> attend_fast(Backend& backend, int leaf_rows, int tokens) {
  LatentCase latents(backend,
                     {.kv_lora_rank = 24,
                      .qk_rope_head_dim = 8,
                      .heads = 3,
                      .row_format = RowFormat::kF32,
                      .query_dtype = DType::kF32},
                     40, 5);
  Normal normal(static_cast<std::uint32_t>(leaf_rows));
  const Leaf leaf = latents.add_leaf(normal.floats(static_cast<std::size_t>(leaf_rows) * 32));
  std::vector<LeafTask> tasks;
  for (int t = 0; t < tokens; ++t) {
    tasks.push_back({.item = 0,
                     .tokens = 1,
                     .rows = leaf.rows,
                     .first_page = leaf.first_page,
                     .leaf_begin = 0,
                     .query_position = leaf.rows,
                     .query = t,
                     .state = t});
  }
  const auto count = static_cast<std::size_t>(tokens);
  return latents.attend(tasks, normal.floats(count * 3 * 32), count);
}

TEST(CudaHost, ScratchOfTheFastOrderGrowsWithThePlan) {
  const auto shared = make_cuda_backend({.fast_merge_order = true});
  for (const auto& [rows, tokens] : {std::pair{100, 1}, {700, 2}, {300, 1}, {1100, 4}}) {
    const auto alone = make_cuda_backend({.fast_merge_order = true});
    EXPECT_EQ(attend_fast(*shared, rows, tokens), attend_fast(*alone, rows, tokens))
        << rows << " rows, " << tokens << " tokens";
  }
  EXPECT_EQ(device_fault(), "");
}

TEST(CudaHost, TheFastOrderCutsSelectionsAnywhere) {
  const auto states = [](bool fast) {
    const auto backend = make_cuda_backend({.fast_merge_order = fast});
    LatentCase latents(*backend, {.kv_lora_rank = 24, .qk_rope_head_dim = 8, .heads = 3}, 40, 5);
    Normal normal(9);
    const Leaf leaf = latents.add_leaf(normal.floats(std::size_t{1100} * 32));
    std::vector<std::vector<std::int32_t>> lists(2);
    for (std::int32_t row = 3; row < leaf.rows; row += 7) lists[0].push_back(row);
    for (std::int32_t row = 640; row < 660; ++row) lists[1].push_back(row);
    latents.select(lists);
    return latents.attend(
        {{.tokens = 2, .rows = 1100, .first_page = leaf.first_page, .query_position = 1100}},
        normal.floats(std::size_t{2} * 3 * 32), 2);
  };
  const std::vector<float> canonical = states(false);
  const std::vector<float> fast = states(true);
  EXPECT_NE(fast, canonical);
  ASSERT_EQ(fast.size(), canonical.size());
  for (std::size_t i = 0; i < fast.size(); ++i) ASSERT_NEAR(fast[i], canonical[i], 1e-5) << i;
}

TEST(CudaHost, ABackendThatEndsWithWorkPendingGivesEverythingBack) {
  const DeviceObjects before = device_objects();
  {
    const auto backend = make_cuda_backend({});
    const Rotation rotation(*backend, 3000, 1);
    for (int i = 0; i < 50; ++i) rotation.enqueue();
    EXPECT_GT(pending_work(cuda_stream(*backend)), 0U);
  }
  EXPECT_EQ(device_objects(), before);
  EXPECT_EQ(device_fault(), "");
}

TEST(CudaHost, BackendsOfSeveralThreadsShareTheDevice) {
  std::array<std::thread, 3> threads;
  std::array<std::size_t, 3> wrong{1, 1, 1};
  for (std::size_t t = 0; t < threads.size(); ++t) {
    threads[t] = std::thread([&wrong = wrong[t], t] {
      const auto backend = make_cuda_backend({});
      wrong = 0;
      for (std::uint32_t round = 0; round < 20; ++round) {
        const Rotation rotation(*backend, 500, static_cast<std::uint32_t>(t) * 100 + round);
        rotation.enqueue();
        wrong += rotation.wrong();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::array<std::size_t, 3>{}));
}

}  // namespace
}  // namespace tributary::test
