// The CUDA runtime's functions about streams and events.
#include <algorithm>

#include "tests/kernels/cuda/runtime/state.h"

using namespace tributary::test;          // NOLINT(google-build-using-namespace)
using namespace tributary::test::device;  // NOLINT(google-build-using-namespace)

namespace {

cudaError_t make_event(std::string_view function, cudaEvent_t* event, bool timing) {
  return call(function, [&](Device& device, Lock&) {
    auto made = std::make_unique<CUevent_st>();
    made->timing = timing;
    *event = made.get();
    device.events.emplace(*event, std::move(made));
    return cudaSuccess;
  });
}

/// Whether capture forbids a query or a wait: in this thread, or of a captured stream.
bool forbidden(Device& device, const CUstream_st& stream) {
  if (stream.capture == nullptr) return forbidden_by_capture(device);
  stream.capture->valid = false;
  return true;
}

cudaError_t record(std::string_view function, cudaEvent_t handle, cudaStream_t stream,
                   unsigned flags) {
  return call(function, [&](Device& device, Lock&) {
    const auto event = device.events.find(handle);
    const auto found = device.streams.find(stream);
    if (event == device.events.end() || found == device.streams.end()) {
      return cudaErrorInvalidResourceHandle;
    }
    if (const auto& capture = found->second->capture; capture != nullptr) {
      const bool external = flags == cudaEventRecordExternal;
      const cudaError_t code = push(device, stream, {.what = "an event"});
      if (code != cudaSuccess) return code;
      if (external) {
        device.graphs.at(capture->graph)->pieces.back().records = handle;
      } else {
        event->second->captured = true;
      }
      return cudaSuccess;
    }
    const auto mark = std::make_shared<Mark>();
    mark->stream = found->second;
    event->second->captured = false;
    event->second->mark = mark;
    return push(device, stream, {.what = "an event", .marks = mark});
  });
}

}  // namespace

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return call("cudaStreamCreateWithFlags", [&](Device& device, Lock&) {
    // Such a stream waits for the default stream, which does not exist here.
    if (flags != cudaStreamNonBlocking) return cudaErrorNotSupported;
    const auto made = std::make_shared<CUstream_st>();
    made->device = current_device();
    *stream = made.get();
    device.streams.emplace(*stream, made);
    return cudaSuccess;
  });
}

/// Returns at once; what was enqueued still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  const auto found = device.streams.find(stream);
  if (found == device.streams.end()) return note(cudaErrorInvalidResourceHandle);
  if (found->second->capture != nullptr) return note(cudaErrorStreamCaptureUnsupported);
  if (!found->second->work.empty()) device.orphans.push_back(found->second);
  device.streams.erase(found);
  return note(device.sticky);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  return call("cudaStreamQuery", [&](Device& device, Lock& lock) {
    const auto found = device.streams.find(handle);
    if (found == device.streams.end()) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<CUstream_st> stream = found->second;
    if (forbidden(device, *stream)) return cudaErrorStreamCaptureUnsupported;
    if (stream->work.empty()) return cudaSuccess;
    ++device.counters.busy_queries;
    make_progress(device, lock, stream, [&] { return stream->work.empty(); });
    if (device.sticky != cudaSuccess) return device.sticky;
    return stream->work.empty() ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  return call("cudaStreamSynchronize", [&](Device& device, Lock& lock) {
    const auto found = device.streams.find(handle);
    if (found == device.streams.end()) return cudaErrorInvalidResourceHandle;
    const std::shared_ptr<CUstream_st> stream = found->second;
    if (forbidden(device, *stream)) return cudaErrorStreamCaptureUnsupported;
    if (!drain(device, lock, stream, [&] { return stream->work.empty(); })) {
      return cudaErrorLaunchTimeout;
    }
    return device.sticky;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned /*flags*/) {
  return call("cudaStreamWaitEvent", [&](Device& device, Lock&) {
    const auto event = device.events.find(handle);
    const auto found = device.streams.find(stream);
    if (event == device.events.end() || found == device.streams.end()) {
      return cudaErrorInvalidResourceHandle;
    }
    // Not emulated: a second stream in a capture, and a graph that waits for work outside of it.
    if (event->second->captured || found->second->capture != nullptr) return cudaErrorNotSupported;
    const auto& mark = event->second->mark;
    if (mark == nullptr || mark->passed) return cudaSuccess;
    return push(device, stream, {.what = "a wait for an event", .needs = mark});
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return make_event("cudaEventCreate", event, true);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return make_event("cudaEventCreateWithFlags", event, (flags & cudaEventDisableTiming) == 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  return note(device.events.erase(event) == 1 ? device.sticky : cudaErrorInvalidResourceHandle);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return record("cudaEventRecord", event, stream, cudaEventRecordDefault);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return record("cudaEventRecordWithFlags", event, stream, flags);
}

cudaError_t cudaEventQuery(cudaEvent_t handle) {
  return call("cudaEventQuery", [&](Device& device, Lock& lock) {
    const auto found = device.events.find(handle);
    if (found == device.events.end()) return cudaErrorInvalidResourceHandle;
    if (forbidden_by_capture(device)) return cudaErrorStreamCaptureUnsupported;
    if (found->second->captured) return cudaErrorCapturedEvent;
    const std::shared_ptr<Mark> mark = found->second->mark;
    if (mark == nullptr || mark->passed) return cudaSuccess;
    ++device.counters.busy_queries;
    make_progress(device, lock, mark->stream, [&] { return mark->passed; });
    if (device.sticky != cudaSuccess) return device.sticky;
    return mark->passed ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle) {
  return call("cudaEventSynchronize", [&](Device& device, Lock& lock) {
    const auto found = device.events.find(handle);
    if (found == device.events.end()) return cudaErrorInvalidResourceHandle;
    if (forbidden_by_capture(device)) return cudaErrorStreamCaptureUnsupported;
    if (found->second->captured) return cudaErrorCapturedEvent;
    const std::shared_ptr<Mark> mark = found->second->mark;
    if (mark == nullptr) return cudaSuccess;
    if (!drain(device, lock, mark->stream, [&] { return mark->passed; })) {
      return cudaErrorLaunchTimeout;
    }
    return device.sticky;
  });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  return call("cudaEventElapsedTime", [&](Device& device, Lock&) {
    const auto a = device.events.find(first);
    const auto b = device.events.find(second);
    if (a == device.events.end() || b == device.events.end()) {
      return cudaErrorInvalidResourceHandle;
    }
    const bool timed = a->second->timing && b->second->timing && a->second->mark != nullptr &&
                       b->second->mark != nullptr;
    if (!timed) return cudaErrorInvalidResourceHandle;
    if (!a->second->mark->passed || !b->second->mark->passed) return cudaErrorNotReady;
    *milliseconds =
        static_cast<float>(b->second->mark->milliseconds - a->second->mark->milliseconds);
    return cudaSuccess;
  });
}
