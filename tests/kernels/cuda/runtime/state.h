// Internal to this folder: the emulated device's state, and how work is put into streams and run.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/kernels/cuda/runtime/emulated_device.h"

namespace tributary::test::device {

/// Thrown by work that used memory wrongly.
class IllegalAddress : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// The position in a stream at which an event was recorded.
struct Mark {
  std::shared_ptr<CUstream_st> stream;
  bool passed = false;
  double milliseconds = 0;  // on the device's clock, once passed
};

struct Work {
  std::string what;
  std::function<void()> run = {};    // null: only a place
  std::shared_ptr<Mark> marks = {};  // passed when it has run
  std::shared_ptr<Mark> needs = {};  // of another stream, to be passed first
  /// Called under the lock when the stream has reached it: whether it may run. Null: it may.
  std::function<bool()> ready = {};
};

/// A piece of a graph. `records`: an event that is recorded whenever it runs.
struct GraphPiece {
  std::string what;
  std::function<void()> run;
  cudaEvent_t records = nullptr;
};

struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id owner;
  bool valid = true;
  cudaGraph_t graph = nullptr;
};

struct Allocation {
  std::size_t bytes = 0;
  bool pinned = false;
  int device = 0;               // its owner
  std::byte* memory = nullptr;  // with its guards
};

/// The state of the device. Members are guarded by `mutex`, which is not held while work runs.
struct Device {
  std::mutex mutex;
  std::condition_variable changed;  // a piece of work has ended, or the device goes on
  DeviceCounters counters;
  cudaError_t sticky = cudaSuccess;
  std::string fault;
  int stalls = 0;
  int selective = 0;  // SelectiveProducts
  int count = 1;      // of devices, which share all of this
  int capability = 80;
  std::set<std::string, std::less<>> loaded;        // kernels
  std::map<const void*, std::size_t> shared_bytes;  // that a kernel was allowed
  double clock_ms = 0;
  std::map<std::string, std::pair<int, cudaError_t>, std::less<>> failures;
  std::map<const std::byte*, Allocation> memory;  // by the first byte that callers see
  std::map<cudaStream_t, std::shared_ptr<CUstream_st>> streams;
  std::vector<std::shared_ptr<CUstream_st>> orphans;  // destroyed with work
  std::map<cudaEvent_t, std::unique_ptr<CUevent_st>> events;
  std::map<cudaGraph_t, std::unique_ptr<CUgraph_st>> graphs;
  std::map<cudaGraphExec_t, std::unique_ptr<CUgraphExec_st>> execs;
  std::set<std::shared_ptr<Capture>> captures;  // under way
};
[[nodiscard]] Device& the_device();

using Lock = std::unique_lock<std::mutex>;

/// Returns `code`, after keeping it for cudaGetLastError if it is an error.
cudaError_t note(cudaError_t code);

/// The most dynamic shared memory of a block.
[[nodiscard]] std::size_t most_shared_bytes(const Device& device);

/// The frame of a call: runs `body` under the lock, unless a test has requested a failure or the
/// device has failed.
template <typename Body>
cudaError_t call(std::string_view function, const Body& body);

/// The failure that a test has requested for this call, or the device's own; otherwise success.
[[nodiscard]] cudaError_t refusal(Device& device, std::string_view function);

/// Whether capture forbids the calling thread this call. If so, invalidates the captures that it
/// would disturb.
[[nodiscard]] bool forbidden_by_capture(Device& device);

/// Puts a product of cuBLASLt into the stream. Tests make it fail by the name `cublasLtMatmul`.
/// Only this function returns the error: the library has a runtime of its own, whose errors
/// cudaGetLastError does not report.
[[nodiscard]] cudaError_t enqueue_product(cudaStream_t stream, std::function<void()> product);

/// Puts work into the stream, or into the graph that the stream is captured into.
[[nodiscard]] cudaError_t push(Device& device, cudaStream_t stream, Work work);

/// Whether SelectiveProducts exists.
[[nodiscard]] bool suggestions_are_useless();

enum class Progress { kRan, kIdle, kWaits };
/// Runs the stream's next piece of work, or what that waits for.
Progress run_next(Device& device, Lock& lock, const std::shared_ptr<CUstream_st>& stream);
/// Runs the stream's work until `done`, for some milliseconds at most: a query of the device gives
/// it time to work.
void make_progress(Device& device, Lock& lock, const std::shared_ptr<CUstream_st>& stream,
                   const std::function<bool()>& done);
/// Runs the stream's work until `done`. False if the device makes no progress.
[[nodiscard]] bool drain(Device& device, Lock& lock, const std::shared_ptr<CUstream_st>& stream,
                         const std::function<bool()>& done);
/// Runs all work of the device's streams.
[[nodiscard]] bool drain_all(Device& device, Lock& lock, int ordinal);

/// The device that the calling thread has selected.
[[nodiscard]] int current_device();

/// Throws IllegalAddress unless [data, data + bytes) lies in one live piece of device memory.
/// Called by work, without the lock.
void require_device_memory(const void* data, std::size_t bytes, const char* what);

/// The allocation that [data, data + bytes) lies in, or null.
[[nodiscard]] const Allocation* find_allocation(const Device& device, const void* data,
                                                std::size_t bytes);

template <typename Body>
cudaError_t call(std::string_view function, const Body& body) {
  Device& device = the_device();
  Lock lock(device.mutex);
  if (const cudaError_t code = refusal(device, function); code != cudaSuccess) return note(code);
  return note(body(device, lock));
}

}  // namespace tributary::test::device

/// The objects that the runtime's handles point to.
struct CUstream_st {
  std::deque<tributary::test::device::Work> work;
  bool running = false;  // its first piece, in some thread
  int device = 0;
  std::shared_ptr<tributary::test::device::Capture> capture;
};

struct CUevent_st {
  bool timing = true;
  bool captured = false;  // last recorded into a graph
  std::shared_ptr<tributary::test::device::Mark> mark;
};

struct CUgraph_st {
  std::vector<tributary::test::device::GraphPiece> pieces;
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<tributary::test::device::GraphPiece>> pieces;
};
