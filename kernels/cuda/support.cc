#include "kernels/cuda/support.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "core/base/error.h"

namespace tributary::cuda {
namespace {

/// A layer's kernels end within some hundred microseconds, and waking from a sleep costs some 60: a
/// wait as short as that is spent yielding.
constexpr auto kYieldTime = std::chrono::milliseconds(2);
constexpr auto kSleep = std::chrono::microseconds(100);

template <typename Query>
void wait_until(const Query& query, Deadline deadline, std::string_view what) {
  const auto begin = Deadline::Clock::now();
  for (;;) {
    const cudaError_t code = query();
    if (code == cudaSuccess) return;
    if (code != cudaErrorNotReady) check(code, what);
    const auto now = Deadline::Clock::now();
    if (now >= deadline.when()) {
      fail(ErrorCode::kDeadlineExceeded, "{}: not complete at the deadline, after {} us", what,
           std::chrono::duration_cast<std::chrono::microseconds>(now - begin).count());
    }
    if (now - begin < kYieldTime) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(
          std::min<Deadline::Clock::duration>(kSleep, deadline.when() - now));
    }
  }
}

ErrorCode code_of(cudaError_t code) {
  switch (code) {
    case cudaErrorMemoryAllocation:
      return ErrorCode::kPoolFull;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorDevicesUnavailable:
      return ErrorCode::kUnavailable;
    default:
      return ErrorCode::kInternal;
  }
}

}  // namespace

void check(cudaError_t code, std::string_view what) {
  if (code == cudaSuccess) return;
  (void)cudaGetLastError();  // errors that are not sticky must not show up in the next call
  fail(code_of(code), "{}: CUDA says {} ({})", what, cudaGetErrorString(code),
       cudaGetErrorName(code));
}

void use_device(int device) {
  check(cudaSetDevice(device), "choosing the device");
}

Stream make_stream() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  return Stream(stream);
}

Event make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "making an event");
  return Event(event);
}

Event make_timing_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "making an event");
  return Event(event);
}

Pinned allocate_pinned(std::size_t bytes) {
  void* data = nullptr;
  check(cudaMallocHost(&data, bytes), "allocating page-locked memory");
  return Pinned(static_cast<std::byte*>(data));
}

void wait_for(cudaEvent_t event, Deadline deadline, std::string_view what) {
  wait_until([event] { return cudaEventQuery(event); }, deadline, what);
}

void wait_for(cudaStream_t stream, Deadline deadline, std::string_view what) {
  wait_until([stream] { return cudaStreamQuery(stream); }, deadline, what);
}

}  // namespace tributary::cuda
