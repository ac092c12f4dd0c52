// The emulated CUDA device, as tests see it: the real CUDA backend runs on it, on the host.
//
// This folder defines the functions of the CUDA runtime that the backend calls, its kernels'
// launches (the kernels' own headers on emulated threads, emulation/simt.h) and, in a library of
// its own, those of cuBLASLt. It is as lazy and as strict as the interface allows: nothing runs
// until somebody waits for it, a copy from page-locked memory reads its source only then, fresh
// device memory holds NaN, ranges are checked when they are used, and what capture forbids fails.
// Not shown: speed, the memory model, work of several streams that overlaps in time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace tributary::test {

/// Totals since the process began.
struct DeviceCounters {
  std::uint64_t launches = 0;        // of kernels and products, enqueued or captured
  std::uint64_t lazy_loads = 0;      // launches of kernels that were not loaded before
  std::uint64_t graph_launches = 0;  // each of a whole graph
  std::uint64_t copies = 0;
  std::uint64_t executed = 0;      // pieces of work, whole graphs' pieces included
  std::uint64_t busy_queries = 0;  // of a stream or an event that still had work before it
  std::uint64_t allocations = 0;   // of device or page-locked memory
};
[[nodiscard]] DeviceCounters device_counters();

/// Pieces of work of a stream that have not run.
[[nodiscard]] std::size_t pending_work(cudaStream_t stream);
/// Bytes of device memory and of page-locked memory that are allocated, streams and events that
/// exist: what a backend must give back.
struct DeviceObjects {
  std::size_t device_bytes = 0, pinned_bytes = 0;
  std::size_t streams = 0, events = 0, graphs = 0;
  friend bool operator==(const DeviceObjects&, const DeviceObjects&) = default;
};
[[nodiscard]] DeviceObjects device_objects();

/// The n-th call from now on (1: the next) of the runtime's function fails with `error` and does
/// nothing. Launches of kernels have the name `cudaLaunchKernel`. 0 cancels that.
void fail_call(std::string_view function, int n, cudaError_t error);
/// Whether that call has not been made yet.
[[nodiscard]] bool failure_is_due(std::string_view function);

/// A misuse that would make a real device fail, in one line; empty: none. After it every call
/// returns the error that a device gives (an illegal address, a failed launch), until it is
/// cleared, which a real device does not allow.
[[nodiscard]] std::string device_fault();
void clear_device_fault();

/// The device makes no progress while this exists. Waits for it without a deadline end after ten
/// seconds.
class StalledDevice {
 public:
  StalledDevice();
  ~StalledDevice();
  StalledDevice(const StalledDevice&) = delete;
  StalledDevice& operator=(const StalledDevice&) = delete;
};

/// No algorithm that cuBLASLt suggests takes all numbers of tokens while this exists; one that it
/// only lists does.
class SelectiveProducts {
 public:
  SelectiveProducts();
  ~SelectiveProducts();
  SelectiveProducts(const SelectiveProducts&) = delete;
  SelectiveProducts& operator=(const SelectiveProducts&) = delete;
};

/// The device is an sm_90 while this exists, for backends that are made meanwhile; else an sm_80.
class EmulatedHopper {
 public:
  EmulatedHopper();
  ~EmulatedHopper();
  EmulatedHopper(const EmulatedHopper&) = delete;
  EmulatedHopper& operator=(const EmulatedHopper&) = delete;
};

/// Sets the number of devices, at first one. They are alike, and share their memory, their faults
/// and all settings of this header.
void set_device_count(int count);

/// Adds work to a stream, as a kernel of the test's own would be.
cudaError_t enqueue_on(cudaStream_t stream, std::function<void()> work);

}  // namespace tributary::test
