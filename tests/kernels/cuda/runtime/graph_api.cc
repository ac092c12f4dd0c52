// The CUDA runtime's functions about stream capture and graphs. A graph here is a chain: what a
// single stream captures.
#include <algorithm>

#include "tests/kernels/cuda/runtime/state.h"

using namespace tributary::test;          // NOLINT(google-build-using-namespace)
using namespace tributary::test::device;  // NOLINT(google-build-using-namespace)

namespace {

/// Whether each node depends on the one before it. Otherwise nodes could run at the same time.
bool is_chain(const CUgraph_st& graph) {
  for (std::size_t i = 1; i < graph.nodes.size(); ++i) {
    const std::vector<cudaGraphNode_t>& needs = graph.nodes[i]->needs;
    if (std::ranges::find(needs, graph.nodes[i - 1].get()) == needs.end()) return false;
  }
  return true;
}

std::vector<GraphPiece> pieces_of(const CUgraph_st& graph) {
  std::vector<GraphPiece> all;
  for (const auto& node : graph.nodes) {
    all.insert(all.end(), node->pieces.begin(), node->pieces.end());
  }
  return all;
}

bool of_graph(const CUgraph_st& graph, cudaGraphNode_t node) {
  return std::ranges::any_of(graph.nodes, [&](const auto& own) { return own.get() == node; });
}

}  // namespace

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&](Device& device, Lock&) {
    const auto found = device.streams.find(handle);
    if (found == device.streams.end()) return cudaErrorInvalidResourceHandle;
    CUstream_st& stream = *found->second;
    if (stream.capture != nullptr) return cudaErrorIllegalState;
    auto graph = std::make_unique<CUgraph_st>();
    stream.capture = std::make_shared<Capture>();
    stream.capture->id = ++device.captures_begun;
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

#if CUDART_VERSION >= 13000  // before, both had other parameters under these names
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* count) {
  return call("cudaStreamGetCaptureInfo", [&](Device& device, Lock&) {
    const auto found = device.streams.find(stream);
    if (found == device.streams.end() || status == nullptr) return cudaErrorInvalidValue;
    const auto& capture = found->second->capture;
    *status = capture == nullptr ? cudaStreamCaptureStatusNone
              : capture->valid   ? cudaStreamCaptureStatusActive
                                 : cudaStreamCaptureStatusInvalidated;
    if (*status != cudaStreamCaptureStatusActive) return cudaSuccess;
    if (id != nullptr) *id = capture->id;
    if (graph != nullptr) *graph = capture->graph;
    if (dependencies != nullptr) *dependencies = capture->dependencies.data();
    if (edges != nullptr) *edges = nullptr;
    if (count != nullptr) *count = capture->dependencies.size();
    return cudaSuccess;
  });
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                const cudaGraphEdgeData* /*edges*/, size_t count,
                                                unsigned flags) {
  return call("cudaStreamUpdateCaptureDependencies", [&](Device& device, Lock&) {
    const auto found = device.streams.find(stream);
    if (found == device.streams.end()) return cudaErrorInvalidResourceHandle;
    const auto& capture = found->second->capture;
    if (capture == nullptr) return cudaErrorIllegalState;
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    const CUgraph_st& graph = *device.graphs.at(capture->graph);
    if (!std::all_of(nodes, nodes + count,
                     [&](cudaGraphNode_t node) { return of_graph(graph, node); })) {
      return cudaErrorInvalidValue;
    }
    if (flags == cudaStreamSetCaptureDependencies) capture->dependencies.clear();
    capture->dependencies.insert(capture->dependencies.end(), nodes, nodes + count);
    return cudaSuccess;
  });
}
#endif

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned /*flags*/) {
  return call("cudaGraphCreate", [&](Device& device, Lock&) {
    auto made = std::make_unique<CUgraph_st>();
    *graph = made.get();
    device.graphs.emplace(*graph, std::move(made));
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  return call("cudaGraphGetNodes", [&](Device& device, Lock&) {
    const auto found = device.graphs.find(handle);
    if (found == device.graphs.end()) return cudaErrorInvalidValue;
    const auto& own = found->second->nodes;
    for (std::size_t i = 0; nodes != nullptr && i < std::min(*count, own.size()); ++i) {
      nodes[i] = own[i].get();
    }
    *count = own.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t handle,
                                       const cudaGraphNode_t* dependencies, size_t count,
                                       cudaGraph_t child) {
  return call("cudaGraphAddChildGraphNode", [&](Device& device, Lock&) {
    const auto found = device.graphs.find(handle);
    const auto found_child = device.graphs.find(child);
    if (found == device.graphs.end() || found_child == device.graphs.end() || handle == child ||
        !is_chain(*found_child->second)) {
      return cudaErrorInvalidValue;
    }
    CUgraph_st& graph = *found->second;
    auto made = std::make_unique<CUgraphNode_st>();
    made->pieces = pieces_of(*found_child->second);
    if (count > 0) made->needs.assign(dependencies, dependencies + count);
    if (!std::ranges::all_of(made->needs, [&](auto* need) { return of_graph(graph, need); })) {
      return cudaErrorInvalidValue;
    }
    *node = made.get();
    graph.nodes.push_back(std::move(made));
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
    if (!is_chain(*found->second)) return cudaErrorNotSupported;
    auto made = std::make_unique<CUgraphExec_st>();
    made->pieces = std::make_shared<const std::vector<GraphPiece>>(pieces_of(*found->second));
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
