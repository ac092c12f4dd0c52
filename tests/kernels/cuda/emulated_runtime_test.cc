// The emulated device is as lazy and as strict as tests of the CUDA backend need it.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/kernels/cuda/runtime/emulated_device.h"
#include "tests/sanitized.h"

namespace tributary::test {
namespace {

constexpr std::size_t kBytes = 256;

class EmulatedRuntime : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device_, kBytes), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(&pinned_, kBytes), cudaSuccess);
    std::memset(pinned_, 1, kBytes);
  }
  void TearDown() override {
    EXPECT_EQ(device_fault(), "");
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(device_objects(), before_);
  }
  /// The first byte on the device, after all work.
  int first_byte() {
    unsigned char value = 0;
    EXPECT_EQ(cudaMemcpyAsync(&value, device_, 1, cudaMemcpyDeviceToHost, stream_), cudaSuccess);
    return value;
  }
  cudaError_t send(const void* from) {
    return cudaMemcpyAsync(device_, from, kBytes, cudaMemcpyHostToDevice, stream_);
  }

  const DeviceObjects before_ = device_objects();
  cudaStream_t stream_ = nullptr;
  void* device_ = nullptr;
  void* pinned_ = nullptr;
};

TEST_F(EmulatedRuntime, FreshDeviceMemoryIsNaN) {
  EXPECT_EQ(first_byte(), 0xff);
}

TEST_F(EmulatedRuntime, APinnedSourceIsReadWhenTheCopyRuns) {
  ASSERT_EQ(send(pinned_), cudaSuccess);
  std::memset(pinned_, 2, kBytes);  // too early, as a staging ring must not do
  EXPECT_EQ(first_byte(), 2);
}

TEST_F(EmulatedRuntime, APageableSourceIsReadByTheCall) {
  std::vector<unsigned char> source(kBytes, 1);
  ASSERT_EQ(send(source.data()), cudaSuccess);
  source.assign(kBytes, 2);
  EXPECT_EQ(first_byte(), 1);
}

TEST_F(EmulatedRuntime, NothingRunsUntilSomebodyAsks) {
  bool ran = false;
  ASSERT_EQ(enqueue_on(stream_, [&ran] { ran = true; }), cudaSuccess);
  EXPECT_FALSE(ran);
  EXPECT_EQ(pending_work(stream_), 1U);
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
  EXPECT_TRUE(ran);
}

TEST_F(EmulatedRuntime, AWaitForAnEventRunsWhatIsBeforeItAlone) {
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  int ran = 0;
  ASSERT_EQ(enqueue_on(stream_, [&ran] { ++ran; }), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  ASSERT_EQ(enqueue_on(stream_, [&ran] { ++ran; }), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(EmulatedRuntime, EventsOrderStreams) {
  cudaStream_t second = nullptr;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  std::vector<int> order;
  ASSERT_EQ(enqueue_on(stream_, [&order] { order.push_back(1); }), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  ASSERT_EQ(enqueue_on(stream_, [&order] { order.push_back(3); }), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  ASSERT_EQ(enqueue_on(second, [&order] { order.push_back(2); }), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(second), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
}

TEST_F(EmulatedRuntime, TimeBetweenEventsIsKnownOnceTheyWerePassed) {
  cudaEvent_t events[2] = {};
  for (cudaEvent_t& event : events) {
    ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event, stream_), cudaSuccess);
  }
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, events[0], events[1]), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);  // "not ready" is not an error
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, events[0], events[1]), cudaSuccess);
  EXPECT_GT(milliseconds, 0);
  for (cudaEvent_t event : events) EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_F(EmulatedRuntime, FreeingDeviceMemoryWaitsForTheDevice) {
  void* other = nullptr;
  ASSERT_EQ(cudaMalloc(&other, kBytes), cudaSuccess);
  ASSERT_EQ(send(pinned_), cudaSuccess);
  EXPECT_EQ(cudaFree(other), cudaSuccess);
  EXPECT_EQ(pending_work(stream_), 0U);
}

TEST_F(EmulatedRuntime, WorkOfAStreamThatIsDestroyedStillRuns) {
  cudaStream_t second = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), cudaSuccess);
  bool ran = false;
  ASSERT_EQ(enqueue_on(second, [&ran] { ran = true; }), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(second), cudaSuccess);
  EXPECT_FALSE(ran);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_TRUE(ran);
}

TEST_F(EmulatedRuntime, RangesOutsideTheirMemoryAreRefused) {
  std::vector<unsigned char> host(2 * kBytes);
  const auto copy = [&](void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    const cudaError_t code = cudaMemcpyAsync(to, from, bytes, kind, stream_);
    EXPECT_EQ(cudaGetLastError(), code);
    return code;
  };
  EXPECT_EQ(copy(device_, host.data(), kBytes + 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(host.data(), pinned_, kBytes, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(copy(device_, host.data(), kBytes, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(pinned_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(static_cast<std::byte*>(device_) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_F(EmulatedRuntime, PinnedMemoryThatIsFreedUnderACopyIsFound) {
  void* source = nullptr;
  ASSERT_EQ(cudaMallocHost(&source, kBytes), cudaSuccess);
  ASSERT_EQ(send(source), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(source), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_NE(device_fault().find("freed"), std::string::npos) << device_fault();
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);  // it stays
  EXPECT_EQ(cudaSetDevice(0), cudaErrorIllegalAddress);
  clear_device_fault();
}

TEST_F(EmulatedRuntime, AWriteBesideAnAllocationIsFoundWhenItIsFreed) {
  if (kSanitized) GTEST_SKIP() << "AddressSanitizer finds it, and ends the program";
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 3), cudaSuccess);
  const auto* const end = static_cast<unsigned char*>(memory) + 3;
  ASSERT_EQ(enqueue_on(stream_, [end] { *const_cast<unsigned char*>(end) = 0; }), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorIllegalAddress);
  EXPECT_NE(device_fault().find("3 bytes"), std::string::npos) << device_fault();
  clear_device_fault();
}

TEST_F(EmulatedRuntime, AStalledDeviceIsNotReady) {
  ASSERT_EQ(send(pinned_), cudaSuccess);
  {
    const StalledDevice stalled;
    EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorNotReady);
  }
  EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);
}

TEST_F(EmulatedRuntime, TheCallThatIsToFailFailsOnce) {
  fail_call("cudaMemcpyAsync", 2, cudaErrorMemoryAllocation);
  EXPECT_EQ(send(pinned_), cudaSuccess);
  EXPECT_EQ(send(pinned_), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(send(pinned_), cudaSuccess);
  EXPECT_EQ(pending_work(stream_), 2U);
}

TEST_F(EmulatedRuntime, StreamsOfSeveralThreadsRunAtOnce) {
  constexpr int kThreads = 4;
  constexpr int kWork = 200;
  std::vector<int> sums(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&sum = sums[static_cast<std::size_t>(t)]] {
      cudaStream_t stream = nullptr;
      EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
      for (int i = 0; i < kWork; ++i) {
        EXPECT_EQ(enqueue_on(stream, [&sum, i] { sum = sum * 3 % 1009 + i; }), cudaSuccess);
        if (i % 50 == 0) (void)cudaStreamQuery(stream);
      }
      void* memory = nullptr;  // freeing waits for the others' streams too
      EXPECT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
      EXPECT_EQ(cudaFree(memory), cudaSuccess);
      EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    });
  }
  for (std::thread& thread : threads) thread.join();
  int expected = 0;
  for (int i = 0; i < kWork; ++i) expected = expected * 3 % 1009 + i;
  EXPECT_EQ(sums, std::vector<int>(kThreads, expected));
}

}  // namespace
}  // namespace tributary::test
