// The CUDA runtime's functions about memory.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/kernels/cuda/runtime/state.h"
#include "tests/sanitized.h"

using namespace tributary::test;          // NOLINT(google-build-using-namespace)
using namespace tributary::test::device;  // NOLINT(google-build-using-namespace)

namespace {

/// The alignment of cudaMalloc.
constexpr std::size_t kAlignment = 256;
/// Guard bytes before and after an allocation: a write to them is found when it is freed.
/// AddressSanitizer does this better, and finds reads too, if there are no guards of ours.
constexpr std::size_t kGuard = kSanitized ? 0 : 256;
constexpr unsigned char kGuardByte = 0xa5;
/// All ones: NaN as bf16, fp32 and fp64, -1 as an index.
constexpr unsigned char kFresh = 0xff;
/// Memory that all processes of a test share; cudaGetDeviceProperties reports the same.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

std::size_t allocated(const Device& device) {
  std::size_t bytes = 0;
  for (const auto& [data, allocation] : device.memory) bytes += allocation.bytes;
  return bytes;
}

cudaError_t allocate(Device& device, void** data, std::size_t bytes, bool pinned) {
  if (data == nullptr) return cudaErrorInvalidValue;
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (forbidden_by_capture(device)) return cudaErrorStreamCaptureUnsupported;
  if (bytes > kMostBytes || allocated(device) + bytes > kMostBytes) {
    return cudaErrorMemoryAllocation;
  }
  void* allocated_memory = nullptr;
  if (posix_memalign(&allocated_memory, kAlignment, kGuard + bytes + kGuard) != 0) {
    return cudaErrorMemoryAllocation;
  }
  auto* const memory = static_cast<std::byte*>(allocated_memory);
  std::byte* const first = memory + kGuard;
  std::memset(memory, kGuardByte, kGuard);
  std::memset(first, kFresh, bytes);
  std::memset(first + bytes, kGuardByte, kGuard);
  device.memory.emplace(
      first,
      Allocation{.bytes = bytes, .pinned = pinned, .device = current_device(), .memory = memory});
  ++device.counters.allocations;
  *data = first;
  return cudaSuccess;
}

bool guards_intact(const std::byte* first, const Allocation& allocation) {
  const auto intact = [](const std::byte* guard) {
    return std::all_of(guard, guard + kGuard,
                       [](std::byte value) { return value == std::byte{kGuardByte}; });
  };
  return intact(allocation.memory) && intact(first + allocation.bytes);
}

cudaError_t release(Device& device, void* data, bool pinned) {
  if (data == nullptr) return cudaSuccess;
  const auto found = device.memory.find(static_cast<std::byte*>(data));
  if (found == device.memory.end() || found->second.pinned != pinned) return cudaErrorInvalidValue;
  const bool intact = guards_intact(found->first, found->second);
  if (!intact && device.fault.empty()) {
    device.sticky = cudaErrorIllegalAddress;
    device.fault =
        fmt::format("something wrote beside the {} bytes of an allocation", found->second.bytes);
  }
  // Late reads get NaN, as long as the host's allocator keeps it.
  std::memset(data, kFresh, found->second.bytes);
  std::free(found->second.memory);
  device.memory.erase(found);
  return intact ? cudaSuccess : device.sticky;
}

/// Frees even on a device that has failed: a process must be able to end without leaks.
cudaError_t free_memory(std::string_view function, void* data, bool pinned) {
  Device& device = the_device();
  Lock lock(device.mutex);
  const cudaError_t refused = refusal(device, function);
  if (refused != cudaSuccess && refused != device.sticky) return note(refused);
  if (data != nullptr && forbidden_by_capture(device)) {
    return note(cudaErrorStreamCaptureUnsupported);
  }
  // cudaFree waits for the device. Nothing is documented for cudaFreeHost, so work that still reads
  // the memory is an error.
  if (data != nullptr && !pinned && refused == cudaSuccess &&
      !drain_all(device, lock, current_device())) {
    return note(cudaErrorLaunchTimeout);
  }
  const cudaError_t code = release(device, data, pinned);
  return note(refused != cudaSuccess ? refused : code);
}

enum class Space { kPageable, kPinned, kDevice, kBroken };
Space space_of(const Device& device, const void* data, std::size_t bytes) {
  if (const Allocation* const found = find_allocation(device, data, bytes); found != nullptr) {
    return found->pinned ? Space::kPinned : Space::kDevice;
  }
  // Begins in an allocation, or extends into one, but is not inside one.
  const auto* const first = static_cast<const std::byte*>(data);
  const auto next = device.memory.lower_bound(first);
  const bool reaches = next != device.memory.end() && next->first < first + bytes;
  const bool begins = find_allocation(device, data, 1) != nullptr;
  return reaches || begins ? Space::kBroken : Space::kPageable;
}

bool kind_fits(cudaMemcpyKind kind, Space to, Space from) {
  if (to == Space::kBroken || from == Space::kBroken) return false;
  const bool to_device = to == Space::kDevice;
  const bool from_device = from == Space::kDevice;
  switch (kind) {
    case cudaMemcpyHostToDevice:
      return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
      return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
      return to_device && from_device;
    case cudaMemcpyHostToHost:
      return !to_device && !from_device;
    case cudaMemcpyDefault:
      return true;
  }
  return false;
}

/// The execution of a copy. Memory that was not pageable must still be allocated.
void copy_now(void* to, const void* from, std::size_t bytes, bool to_pageable, bool from_pageable) {
  {
    Device& device = the_device();
    const Lock lock(device.mutex);
    if ((!to_pageable && find_allocation(device, to, bytes) == nullptr) ||
        (!from_pageable && find_allocation(device, from, bytes) == nullptr)) {
      throw IllegalAddress(fmt::format("{} bytes to or from memory that was freed", bytes));
    }
  }
  std::memcpy(to, from, bytes);
}

}  // namespace

cudaError_t cudaMalloc(void** data, size_t bytes) {
  return call("cudaMalloc",
              [&](Device& device, Lock&) { return allocate(device, data, bytes, false); });
}

cudaError_t cudaMallocHost(void** data, size_t bytes) {
  return call("cudaMallocHost",
              [&](Device& device, Lock&) { return allocate(device, data, bytes, true); });
}

cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned /*flags*/) {
  return call("cudaHostAlloc",
              [&](Device& device, Lock&) { return allocate(device, data, bytes, true); });
}

cudaError_t cudaFree(void* data) {
  return free_memory("cudaFree", data, false);
}

cudaError_t cudaFreeHost(void* data) {
  return free_memory("cudaFreeHost", data, true);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
  return call("cudaMemGetInfo", [&](Device& device, Lock&) {
    *total = kMostBytes;
    *free_bytes = kMostBytes - allocated(device);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](Device& device, Lock& lock) {
    const auto found = device.streams.find(stream);
    if (found == device.streams.end()) return cudaErrorInvalidResourceHandle;
    if (bytes == 0) return cudaSuccess;
    const Space to_space = space_of(device, to, bytes);
    const Space from_space = space_of(device, from, bytes);
    if (!kind_fits(kind, to_space, from_space)) return cudaErrorInvalidValue;
    const bool to_pageable = to_space == Space::kPageable;
    const bool from_pageable = from_space == Space::kPageable;
    if (const auto& capture = found->second->capture;
        capture != nullptr && (to_pageable || from_pageable)) {
      capture->valid = false;
      return cudaErrorStreamCaptureUnsupported;
    }
    ++device.counters.copies;
    Work work{.what = "a copy"};
    if (from_pageable) {
      // Into the driver's own memory, before the call returns.
      const auto* const begin = static_cast<const std::byte*>(from);
      work.run = [to, to_pageable, source = std::vector<std::byte>(begin, begin + bytes)] {
        copy_now(to, source.data(), source.size(), to_pageable, true);
      };
    } else {
      work.run = [=] { copy_now(to, from, bytes, to_pageable, false); };
    }
    const std::shared_ptr<CUstream_st> owner = found->second;
    const auto mark = std::make_shared<Mark>();
    mark->stream = owner;
    if (to_pageable) work.marks = mark;
    if (const cudaError_t code = push(device, stream, std::move(work)); code != cudaSuccess) {
      return code;
    }
    if (!to_pageable) return cudaSuccess;
    // Returns once the copy has completed.
    if (!drain(device, lock, owner, [&] { return mark->passed; })) return cudaErrorLaunchTimeout;
    return device.sticky;
  });
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", [&](Device& device, Lock&) {
    if (space_of(device, to, bytes) != Space::kDevice) return cudaErrorInvalidValue;
    return push(device, stream, {.what = "setting memory", .run = [=] {
                                   require_device_memory(to, bytes, "what is set");
                                   std::memset(to, value, bytes);
                                 }});
  });
}
