// The CUDA runtime's functions about devices and errors. The devices have few multiprocessors, so
// that each part of a grid takes several units.
#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "tests/kernels/cuda/runtime/state.h"

using namespace tributary::test;          // NOLINT(google-build-using-namespace)
using namespace tributary::test::device;  // NOLINT(google-build-using-namespace)

namespace {

constexpr int kMultiprocessors = 3;
/// Memory for the pages of pools: little, because it is the host's.
constexpr std::size_t kMemoryBytes = std::size_t{1} << 30;

struct ErrorWords {
  cudaError_t code;
  const char* name;
  const char* words;
};
constexpr std::array kErrors{
    ErrorWords{cudaSuccess, "cudaSuccess", "no error"},
    ErrorWords{cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    ErrorWords{cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    ErrorWords{cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
               "invalid configuration argument"},
    ErrorWords{cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction",
               "invalid device function"},
    ErrorWords{cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    ErrorWords{cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    ErrorWords{cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
               "CUDA driver version is insufficient for CUDA runtime version"},
    ErrorWords{cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle",
               "invalid resource handle"},
    ErrorWords{cudaErrorIllegalState, "cudaErrorIllegalState",
               "the operation cannot be performed in the present state"},
    ErrorWords{cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    ErrorWords{cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
               "an illegal memory access was encountered"},
    ErrorWords{cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout",
               "the launch timed out and was terminated"},
    ErrorWords{cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    ErrorWords{cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    ErrorWords{cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
               "operation not permitted when stream is capturing"},
    ErrorWords{cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
               "operation failed due to a previous error during capture"},
    ErrorWords{cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
               "attempt to terminate a thread-local capture sequence from another thread"},
    ErrorWords{cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
               "operation not permitted on an event last recorded in a capturing stream"},
};

const ErrorWords& words_of(cudaError_t code) {
  static constexpr ErrorWords kOther{cudaErrorUnknown, "cudaErrorUnknown", "unknown error"};
  const auto* const found = std::ranges::find(kErrors, code, &ErrorWords::code);
  return found == kErrors.end() ? kOther : *found;
}

thread_local int thread_device = 0;

bool exists(const Device& device, int ordinal) {
  return ordinal >= 0 && ordinal < device.count;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  return words_of(error).name;
}

const char* cudaGetErrorString(cudaError_t error) {
  return words_of(error).words;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&](Device& state, Lock&) {
    *count = state.count;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](Device& state, Lock&) {
    if (!exists(state, device)) return cudaErrorInvalidDevice;
    thread_device = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](Device&, Lock&) {
    *device = thread_device;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", [&](Device& state, Lock&) {
    if (!exists(state, device)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount:
        *value = kMultiprocessors;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(most_shared_bytes(state));
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = state.capability / 10;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = state.capability % 10;
        return cudaSuccess;
      default:
        return cudaErrorInvalidValue;
    }
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&](Device& state, Lock&) {
    if (!exists(state, device)) return cudaErrorInvalidDevice;
    *properties = {};
    constexpr std::string_view kName = "Emulated";
    std::ranges::copy(kName, properties->name);
    std::ranges::copy(kName, properties->uuid.bytes);
    properties->uuid.bytes[15] = static_cast<char>(device);
    properties->totalGlobalMem = kMemoryBytes;
    properties->major = state.capability / 10;
    properties->minor = state.capability % 10;
    properties->multiProcessorCount = kMultiprocessors;
    properties->sharedMemPerBlock = std::size_t{48} << 10;
    properties->sharedMemPerBlockOptin = most_shared_bytes(state);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [](Device& device, Lock& lock) {
    if (forbidden_by_capture(device)) return cudaErrorStreamCaptureUnsupported;
    if (!drain_all(device, lock, thread_device)) return cudaErrorLaunchTimeout;
    return device.sticky;
  });
}

namespace tributary::test {

int device::current_device() {
  return thread_device;
}

void set_device_count(int count) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  device.count = count;
}

std::size_t device::most_shared_bytes(const Device& device) {
  return std::size_t{device.capability == 90 ? 227U : 163U} << 10;
}

EmulatedHopper::EmulatedHopper() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  device.capability = 90;
}

EmulatedHopper::~EmulatedHopper() {
  Device& device = the_device();
  const Lock lock(device.mutex);
  device.capability = 80;
}

}  // namespace tributary::test
