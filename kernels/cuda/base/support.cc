#include "kernels/cuda/base/support.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/awake_wait.h"
#include "core/base/deadline.h"
#include "core/base/error.h"

namespace tributary::cuda {
namespace {

/// A layer's kernels end within some hundred microseconds, and waking from a sleep costs about 60:
/// such short waits are spent yielding.
constexpr auto kYieldTime = std::chrono::milliseconds(2);
constexpr auto kSleep = std::chrono::microseconds(100);

/// Streams and events whose work missed a deadline, until a wait for them succeeds. One that is
/// destroyed before stays: nobody can ask for its work any more.
class LateWork {
 public:
  void add(const void* handle) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) return;
    const std::lock_guard lock(mutex_);
    late_.push_back({device, handle});
    count_.store(late_.size(), std::memory_order_relaxed);
  }
  void remove(const void* handle) {
    if (count_.load(std::memory_order_relaxed) == 0) return;  // the rule
    const std::lock_guard lock(mutex_);
    std::erase_if(late_, [handle](const Entry& entry) { return entry.handle == handle; });
    count_.store(late_.size(), std::memory_order_relaxed);
  }
  /// Logs it the first time.
  [[nodiscard]] bool on_current_device() {
    int device = 0;
    if (count_.load(std::memory_order_relaxed) == 0 || cudaGetDevice(&device) != cudaSuccess) {
      return false;
    }
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(late_, device, &Entry::device) == late_.end()) return false;
    if (!said_) {
      static_cast<void>(std::fprintf(
          stderr,
          "tributary: CUDA device %d missed a deadline and may hang: its memory is left to the end "
          "of this process, since freeing it would wait without a deadline\n",
          device));
    }
    said_ = true;
    return true;
  }

 private:
  struct Entry {
    int device;
    const void* handle;
  };
  std::mutex mutex_;
  std::vector<Entry> late_;
  std::atomic<std::size_t> count_ = 0;
  bool said_ = false;
};

LateWork& late_work() {
  // Never destroyed: backends of static storage free their memory at any time.
  static auto* const work = new LateWork;
  return *work;
}

template <typename Query>
void wait_until(const Query& query, const void* handle, Deadline deadline, std::string_view what) {
  const RelaxedCapture relaxed;
  const auto begin = std::chrono::steady_clock::now();
  AwakeWait patience(deadline, begin);
  for (;;) {
    const cudaError_t code = query();
    if (code == cudaSuccess) return late_work().remove(handle);
    if (code != cudaErrorNotReady) check(code, what);
    const auto now = std::chrono::steady_clock::now();
    if (patience.over(now)) {
      late_work().add(handle);
      fail(ErrorCode::kDeadlineExceeded, "{}: not complete at the deadline, after {} us", what,
           std::chrono::duration_cast<std::chrono::microseconds>(now - begin).count());
    }
    if (now - begin < kYieldTime) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(std::min<Duration>(kSleep, patience.next_look(now) - now));
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
  (void)cudaGetLastError();  // a non-sticky error must not appear in the next call
  fail(code_of(code), "{}: CUDA says {} ({})", what, cudaGetErrorString(code),
       cudaGetErrorName(code));
}

void use_device(int device) {
  check(cudaSetDevice(device), "choosing the device");
}

RelaxedCapture::RelaxedCapture() noexcept
    : exchanged_(cudaThreadExchangeStreamCaptureMode(&mode_) == cudaSuccess) {}

RelaxedCapture::~RelaxedCapture() {
  if (exchanged_) (void)cudaThreadExchangeStreamCaptureMode(&mode_);
}

bool leave_memory_of_device() noexcept {
  return late_work().on_current_device();
}

void PinnedFree::operator()(std::byte* data) const noexcept {
  if (leave_memory_of_device()) return;
  const RelaxedCapture relaxed;
  (void)cudaFreeHost(data);
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
  const RelaxedCapture relaxed;
  void* data = nullptr;
  check(cudaMallocHost(&data, bytes), "allocating page-locked memory");
  return Pinned(static_cast<std::byte*>(data));
}

void wait_for(cudaEvent_t event, Deadline deadline, std::string_view what) {
  wait_until([event] { return cudaEventQuery(event); }, event, deadline, what);
}

void wait_for(cudaStream_t stream, Deadline deadline, std::string_view what) {
  wait_until([stream] { return cudaStreamQuery(stream); }, stream, deadline, what);
}

}  // namespace tributary::cuda
