#include "tests/kernels/cuda/runtime/state.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>

namespace tributary::test::device {
namespace {

using Clock = std::chrono::steady_clock;

/// The longest time that a query runs work: tests wait in a loop that sleeps, and a piece of work
/// takes microseconds to milliseconds.
constexpr auto kQueryTime = std::chrono::milliseconds(20);
/// The limit of waits without a deadline while the device is stalled or waits for another.
constexpr auto kStallTime = std::chrono::seconds(10);

thread_local cudaError_t last_error = cudaSuccess;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

double tick(Device& device) {
  const double now =
      std::chrono::duration<double, std::milli>(Clock::now().time_since_epoch()).count();
  // Events have half a microsecond's resolution, and two of them are never passed at once.
  device.clock_ms = std::max(device.clock_ms + 5e-4, now);
  return device.clock_ms;
}

/// The device is lost: no pending work will be done.
void fail_device(Device& device, cudaError_t code, const std::string& words) {
  if (device.sticky == cudaSuccess) {
    device.sticky = code;
    device.fault = words;
    std::fprintf(stderr, "emulated CUDA device: %s\n", words.c_str());
  }
  for (const auto& [handle, stream] : device.streams) {
    if (!stream->running) stream->work.clear();
  }
  device.orphans.clear();
}

}  // namespace

Device& the_device() {
  // Never destroyed: backends of static storage free their memory at any time.
  static auto* const device = new Device;
  return *device;
}

cudaError_t note(cudaError_t code) {
  // The programming guide: not ready is not an error, and cudaGetLastError does not report it.
  if (code != cudaSuccess && code != cudaErrorNotReady) last_error = code;
  return code;
}

cudaError_t refusal(Device& device, std::string_view function) {
  const auto found = device.failures.find(function);
  if (found != device.failures.end() && --found->second.first == 0) {
    const cudaError_t code = found->second.second;
    device.failures.erase(found);
    return code;
  }
  return device.sticky;
}

bool forbidden_by_capture(Device& device) {
  bool forbidden = false;
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  for (const auto& capture : device.captures) {
    const bool own = capture->owner == std::this_thread::get_id() &&
                     capture->mode != cudaStreamCaptureModeRelaxed;
    const bool others = thread_mode == cudaStreamCaptureModeGlobal &&
                        capture->owner != std::this_thread::get_id() &&
                        capture->mode == cudaStreamCaptureModeGlobal;
    if (!own && !others) continue;
    capture->valid = false;
    forbidden = true;
  }
  return forbidden;
}

cudaError_t push(Device& device, cudaStream_t handle, Work work) {
  const auto found = device.streams.find(handle);
  if (found == device.streams.end()) return cudaErrorInvalidResourceHandle;
  CUstream_st& stream = *found->second;
  if (stream.capture == nullptr) {
    stream.work.push_back(std::move(work));
    return cudaSuccess;
  }
  const Capture& capture = *stream.capture;
  if (!capture.valid) return cudaErrorStreamCaptureInvalidated;
  device.graphs.at(capture.graph)
      ->pieces.push_back({std::move(work.what), std::move(work.run), nullptr});
  return cudaSuccess;
}

cudaError_t enqueue_product(cudaStream_t stream, std::function<void()> product) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  const cudaError_t code = refusal(device, "cublasLtMatmul");
  if (code != cudaSuccess) return code;
  ++device.counters.launches;
  return push(device, stream, {.what = "a product", .run = std::move(product)});
}

bool suggestions_are_useless() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  return device.selective > 0;
}

Progress run_next(Device& device, Lock& lock, const std::shared_ptr<CUstream_st>& stream) {
  if (stream->work.empty()) return Progress::kIdle;
  if (device.stalls > 0 || stream->running) return Progress::kWaits;
  if (const auto needs = stream->work.front().needs; needs != nullptr && !needs->passed) {
    return run_next(device, lock, needs->stream) == Progress::kRan ? Progress::kRan
                                                                   : Progress::kWaits;
  }
  if (const auto& ready = stream->work.front().ready; ready && !ready()) return Progress::kWaits;
  stream->running = true;
  const Work work = stream->work.front();
  lock.unlock();
  cudaError_t code = cudaSuccess;
  std::string words;
  try {
    if (work.run) work.run();
  } catch (const IllegalAddress& error) {
    code = cudaErrorIllegalAddress;
    words = fmt::format("{}: {}", work.what, error.what());
  } catch (const std::exception& error) {
    code = cudaErrorLaunchFailure;
    words = fmt::format("{}: {}", work.what, error.what());
  }
  lock.lock();
  stream->running = false;
  stream->work.pop_front();
  ++device.counters.executed;
  if (work.marks != nullptr) {
    work.marks->passed = true;
    work.marks->milliseconds = tick(device);
  }
  if (code != cudaSuccess) {
    stream->work.clear();
    fail_device(device, code, words);
  }
  device.changed.notify_all();
  return Progress::kRan;
}

void make_progress(Device& device, Lock& lock, const std::shared_ptr<CUstream_st>& stream,
                   const std::function<bool()>& done) {
  const auto end = Clock::now() + kQueryTime;
  while (!done() && run_next(device, lock, stream) == Progress::kRan && Clock::now() < end) {
  }
}

bool drain(Device& device, Lock& lock, const std::shared_ptr<CUstream_st>& stream,
           const std::function<bool()>& done) {
  const auto end = Clock::now() + kStallTime;
  while (!done() && device.sticky == cudaSuccess) {
    if (run_next(device, lock, stream) == Progress::kRan) continue;
    device.changed.wait_for(lock, std::chrono::milliseconds(1));
    const bool waits = !stream->work.empty() && stream->work.front().ready;
    if ((device.stalls > 0 || waits) && Clock::now() > end) return false;
  }
  return true;
}

bool drain_all(Device& device, Lock& lock, int ordinal) {
  std::vector<std::shared_ptr<CUstream_st>> streams = device.orphans;
  for (const auto& [handle, stream] : device.streams) streams.push_back(stream);
  std::erase_if(streams, [&](const auto& stream) { return stream->device != ordinal; });
  for (const auto& stream : streams) {
    if (!drain(device, lock, stream, [&] { return stream->work.empty(); })) return false;
  }
  std::erase_if(device.orphans, [](const auto& stream) { return stream->work.empty(); });
  return true;
}

const Allocation* find_allocation(const Device& device, const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(data);
  auto found = device.memory.upper_bound(first);
  if (found == device.memory.begin()) return nullptr;
  found = std::prev(found);
  const auto offset = static_cast<std::size_t>(first - found->first);
  const bool inside = offset <= found->second.bytes && bytes <= found->second.bytes - offset;
  return inside ? &found->second : nullptr;
}

void require_device_memory(const void* data, std::size_t bytes, const char* what) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  const Allocation* const found = find_allocation(device, data, bytes);
  if (found != nullptr && !found->pinned) return;
  throw IllegalAddress(fmt::format("{} ({} bytes) is not device memory", what, bytes));
}

}  // namespace tributary::test::device

// Errors and capture modes are here because they belong to the thread, not to the device.
using namespace tributary::test::device;  // NOLINT(google-build-using-namespace)

cudaError_t cudaGetLastError() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  const cudaError_t last = std::exchange(last_error, cudaSuccess);
  return device.sticky != cudaSuccess ? device.sticky : last;
}

cudaError_t cudaPeekAtLastError() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  return device.sticky != cudaSuccess ? device.sticky : last_error;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", [&](Device&, Lock&) {
    std::swap(*mode, thread_mode);
    return cudaSuccess;
  });
}

namespace tributary::test {

DeviceCounters device_counters() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  return device.counters;
}

std::size_t pending_work(cudaStream_t stream) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  const auto found = device.streams.find(stream);
  return found == device.streams.end() ? 0 : found->second->work.size();
}

DeviceObjects device_objects() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  DeviceObjects objects{.streams = device.streams.size(),
                        .events = device.events.size(),
                        .graphs = device.graphs.size() + device.execs.size()};
  for (const auto& [data, allocation] : device.memory) {
    (allocation.pinned ? objects.pinned_bytes : objects.device_bytes) += allocation.bytes;
  }
  return objects;
}

void fail_call(std::string_view function, int n, cudaError_t error) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  device.failures.erase(std::string(function));
  if (n > 0) device.failures.emplace(function, std::pair(n, error));
}

bool failure_is_due(std::string_view function) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  return device.failures.contains(function);
}

std::string device_fault() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  return device.fault;
}

void clear_device_fault() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  device.fault.clear();
  device.sticky = cudaSuccess;
  last_error = cudaSuccess;
}

StalledDevice::StalledDevice() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  ++device.stalls;
}

StalledDevice::~StalledDevice() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  --device.stalls;
  device.changed.notify_all();
}

SelectiveProducts::SelectiveProducts() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  ++device.selective;
}

SelectiveProducts::~SelectiveProducts() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  --device.selective;
}

cudaError_t enqueue_on(cudaStream_t stream, std::function<void()> work) {
  return device::call("cudaLaunchKernel", [&](Device& device, Lock&) {
    ++device.counters.launches;
    return push(device, stream, {.what = "a kernel", .run = std::move(work)});
  });
}

}  // namespace tributary::test
