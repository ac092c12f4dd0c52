// Stream capture on the emulated device records what it may and forbids what it must, and graphs
// replay.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/runtime/emulated_device.h"

namespace tributary::test {
namespace {

constexpr std::size_t kGraphBytes = 64;

class EmulatedGraph : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&device_, kGraphBytes), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(&pinned_, kGraphBytes), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&event_), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(device_fault(), "");
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaFree(device_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(device_objects(), before_);
    (void)cudaGetLastError();
  }
  void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
  }
  cudaGraph_t end() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    return graph;
  }
  /// A graph that appends `value` to `ran_`.
  cudaGraph_t graph_of(int value) {
    begin();
    EXPECT_EQ(enqueue_on(stream_, [this, value] { ran_.push_back(value); }), cudaSuccess);
    return end();
  }
  static cudaGraphExec_t instantiate(cudaGraph_t graph) {
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    return exec;
  }

  const DeviceObjects before_ = device_objects();
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* device_ = nullptr;
  void* pinned_ = nullptr;
  std::vector<int> ran_;
};

TEST_F(EmulatedGraph, WhatIsCapturedRunsWhenTheGraphDoesAndAsOftenAsItDoes) {
  begin();
  EXPECT_EQ(cudaMemcpyAsync(device_, pinned_, kGraphBytes, cudaMemcpyHostToDevice, stream_),
            cudaSuccess);
  EXPECT_EQ(enqueue_on(stream_, [this] { ran_.push_back(*static_cast<char*>(device_)); }),
            cudaSuccess);
  const cudaGraph_t graph = end();
  const cudaGraphExec_t exec = instantiate(graph);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_TRUE(ran_.empty());
  for (const int value : {5, 6}) {
    std::memset(pinned_, value, kGraphBytes);
    EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
  EXPECT_EQ(ran_, (std::vector<int>{5, 6}));
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(EmulatedGraph, AGraphThatIsDestroyedWhileItIsPendingStillRuns) {
  const cudaGraph_t graph = graph_of(1);
  const cudaGraphExec_t exec = instantiate(graph);
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_TRUE(ran_.empty());
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(ran_, std::vector<int>{1});
}

TEST_F(EmulatedGraph, WhatCaptureForbidsInvalidatesIt) {
  std::vector<char> pageable(kGraphBytes);
  void* made = nullptr;
  const std::vector<std::pair<std::string, std::function<cudaError_t()>>> forbidden{
      {"cudaMalloc", [&] { return cudaMalloc(&made, kGraphBytes); }},
      {"cudaMallocHost", [&] { return cudaMallocHost(&made, kGraphBytes); }},
      {"cudaFree", [&] { return cudaFree(device_); }},
      {"cudaFreeHost", [&] { return cudaFreeHost(pinned_); }},
      {"cudaStreamQuery", [&] { return cudaStreamQuery(stream_); }},
      {"cudaStreamSynchronize", [&] { return cudaStreamSynchronize(stream_); }},
      {"cudaEventQuery", [&] { return cudaEventQuery(event_); }},
      {"cudaDeviceSynchronize", [&] { return cudaDeviceSynchronize(); }},
      {"a pageable source",
       [&] {
         return cudaMemcpyAsync(device_, pageable.data(), kGraphBytes, cudaMemcpyHostToDevice,
                                stream_);
       }},
      {"a pageable destination",
       [&] {
         return cudaMemcpyAsync(pageable.data(), device_, kGraphBytes, cudaMemcpyDeviceToHost,
                                stream_);
       }},
  };
  for (const auto& [name, what] : forbidden) {
    SCOPED_TRACE(name);
    begin();
    EXPECT_EQ(what(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(enqueue_on(stream_, [] {}), cudaErrorStreamCaptureInvalidated);
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(cudaStreamQuery(stream_), cudaSuccess);  // the stream is as before
  }
}

TEST_F(EmulatedGraph, AThreadLocalCaptureLeavesOtherThreadsAlone) {
  const auto allocate_elsewhere = [] {
    cudaError_t code = cudaSuccess;
    std::thread([&code] {
      void* memory = nullptr;
      code = cudaMalloc(&memory, kGraphBytes);
      (void)cudaFree(memory);
    }).join();
    return code;
  };
  begin(cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(allocate_elsewhere(), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(end()), cudaSuccess);
  begin(cudaStreamCaptureModeGlobal);
  EXPECT_EQ(allocate_elsewhere(), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureInvalidated);
}

TEST_F(EmulatedGraph, OnlyTheThreadThatBeganACaptureEndsIt) {
  begin();
  cudaGraph_t graph = nullptr;
  std::thread([&] {
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorStreamCaptureWrongThread);
  }).join();
  EXPECT_EQ(cudaGraphDestroy(end()), cudaSuccess);
}

TEST_F(EmulatedGraph, AnExternalEventIsPassedByEveryLaunch) {
  begin();
  EXPECT_EQ(enqueue_on(stream_, [this] { ran_.push_back(1); }), cudaSuccess);
  EXPECT_EQ(cudaEventRecordWithFlags(event_, stream_, cudaEventRecordExternal), cudaSuccess);
  EXPECT_EQ(enqueue_on(stream_, [this] { ran_.push_back(2); }), cudaSuccess);
  const cudaGraph_t graph = end();
  const cudaGraphExec_t exec = instantiate(graph);
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  EXPECT_EQ(ran_, std::vector<int>{1});
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(EmulatedGraph, AReplayThatReadsFreedMemoryIsFound) {
  void* source = nullptr;
  ASSERT_EQ(cudaMalloc(&source, kGraphBytes), cudaSuccess);
  begin();
  EXPECT_EQ(cudaMemcpyAsync(device_, source, kGraphBytes, cudaMemcpyDeviceToDevice, stream_),
            cudaSuccess);
  const cudaGraph_t graph = end();
  const cudaGraphExec_t exec = instantiate(graph);
  EXPECT_EQ(cudaFree(source), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  clear_device_fault();
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace tributary::test
