// The CUDA runtime's functions about stream capture and graphs. A graph here is a chain: a single
// stream captures.
#include <algorithm>

#include "tests/kernels/cuda/runtime/state.h"

using namespace tributary::test;          // NOLINT(google-build-using-namespace)
using namespace tributary::test::device;  // NOLINT(google-build-using-namespace)

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&](Device& device, Lock&) {
    const auto found = device.streams.find(handle);
    if (found == device.streams.end()) return cudaErrorInvalidResourceHandle;
    CUstream_st& stream = *found->second;
    if (stream.capture != nullptr) return cudaErrorIllegalState;
    auto graph = std::make_unique<CUgraph_st>();
    stream.capture = std::make_shared<Capture>();
    stream.capture->mode = mode;
    stream.capture->owner = std::this_thread::get_id();
    stream.capture->graph = graph.get();
    device.graphs.emplace(graph.get(), std::move(graph));
    device.captures.insert(stream.capture);
    return cudaSuccess;
  });
}

/// Ends the capture even if the call must fail, as on a device that has failed meanwhile.
cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  const cudaError_t refused = refusal(device, "cudaStreamEndCapture");
  *graph = nullptr;
  const auto found = device.streams.find(handle);
  if (found == device.streams.end()) return note(cudaErrorInvalidResourceHandle);
  const std::shared_ptr<Capture> capture = found->second->capture;
  if (capture == nullptr) return note(cudaErrorIllegalState);
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->owner != std::this_thread::get_id()) {
    return note(cudaErrorStreamCaptureWrongThread);
  }
  found->second->capture = nullptr;
  device.captures.erase(capture);
  if (capture->valid && refused == cudaSuccess) {
    *graph = capture->graph;
    return cudaSuccess;
  }
  device.graphs.erase(capture->graph);
  return note(refused != cudaSuccess ? refused : cudaErrorStreamCaptureInvalidated);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", [&](Device& device, Lock&) {
    const auto found = device.streams.find(stream);
    if (found == device.streams.end()) return cudaErrorInvalidResourceHandle;
    const auto& capture = found->second->capture;
    *status = capture == nullptr ? cudaStreamCaptureStatusNone
              : capture->valid   ? cudaStreamCaptureStatusActive
                                 : cudaStreamCaptureStatusInvalidated;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  const bool captured = std::ranges::any_of(
      device.captures, [&](const auto& capture) { return capture->graph == graph; });
  if (captured || device.graphs.erase(graph) == 0) return note(cudaErrorInvalidValue);
  return note(device.sticky);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  return call("cudaGraphInstantiate", [&](Device& device, Lock&) {
    *exec = nullptr;
    const auto found = device.graphs.find(graph);
    if (found == device.graphs.end()) return cudaErrorInvalidValue;
    auto made = std::make_unique<CUgraphExec_st>();
    made->pieces = std::make_shared<const std::vector<GraphPiece>>(found->second->pieces);
    *exec = made.get();
    device.execs.emplace(*exec, std::move(made));
    return cudaSuccess;
  });
}

/// Launches in progress still run.
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  Device& device = the_device();
  const Lock lock(device.mutex);
  return note(device.execs.erase(exec) == 1 ? device.sticky : cudaErrorInvalidValue);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  return call("cudaGraphUpload", [&](Device& device, Lock&) {
    const auto found = device.streams.find(stream);
    if (!device.execs.contains(exec) || found == device.streams.end()) {
      return cudaErrorInvalidValue;
    }
    if (found->second->capture == nullptr) return cudaSuccess;
    found->second->capture->valid = false;
    return cudaErrorStreamCaptureUnsupported;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return call("cudaGraphLaunch", [&](Device& device, Lock&) {
    const auto found = device.streams.find(stream);
    const auto graph = device.execs.find(exec);
    if (found == device.streams.end() || graph == device.execs.end()) return cudaErrorInvalidValue;
    if (found->second->capture != nullptr) {
      found->second->capture->valid = false;
      return cudaErrorStreamCaptureUnsupported;
    }
    ++device.counters.graph_launches;
    const auto pieces = graph->second->pieces;
    for (std::size_t i = 0; i < pieces->size(); ++i) {
      const GraphPiece& piece = (*pieces)[i];
      Work work{.what = piece.what};
      if (piece.run) work.run = [pieces, i] { (*pieces)[i].run(); };
      if (const auto event = device.events.find(piece.records); event != device.events.end()) {
        work.marks = std::make_shared<Mark>();
        work.marks->stream = found->second;
        event->second->captured = false;
        event->second->mark = work.marks;
      }
      if (const cudaError_t code = push(device, stream, std::move(work)); code != cudaSuccess) {
        return code;
      }
    }
    return cudaSuccess;
  });
}
