#include "kernels/cuda/recording.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/base/error.h"

namespace tributary::cuda {
namespace {

/// A batch's plan grows by a page or a task now and then; recordings must survive that.
constexpr std::size_t kLeastRoom = 16;
constexpr std::size_t kLeastRegion = std::size_t{1} << 16;

}  // namespace

PlanMemory::Region PlanMemory::take(std::size_t bytes) {
  const auto found =
      std::ranges::find_if(free_, [bytes](const Region& region) { return region.bytes >= bytes; });
  if (found != free_.end()) {
    Region region = std::move(*found);
    free_.erase(found);
    return region;
  }
  const std::size_t size = std::max(kLeastRegion, std::bit_ceil(bytes));
  return {allocate_device(size, "plan data of a recording"), size};
}

CudaRecording::~CudaRecording() {
  if (region_.memory) memory_->put_back(std::move(region_));
}

void CudaRecording::capture(cudaStream_t stream, const std::function<void()>& launches) {
  // For this thread only: other threads may store rows at the same time.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
  const Status status = status_of(launches);
  cudaGraph_t graph = nullptr;
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  graph_.reset(graph);
  if (!status.ok()) {  // the cause; ending the capture fails as a consequence
    (void)cudaGetLastError();
    status.throw_if_error();
  }
  check(ended, "ending a capture");
  cudaGraphExec_t exec = nullptr;
  check(cudaGraphInstantiate(&exec, graph, 0), "making a graph of a capture");
  exec_.reset(exec);
}

void CudaRecording::replay(cudaStream_t stream) const {
  check(cudaGraphLaunch(exec_.get(), stream), "launching a graph");
}

bool Recorder::take(const Launch& launch) {
  const std::vector<Launch>& recorded = recording_.launches_;
  if (pass_ == Pass::kCapture) recording_.launches_.push_back(launch);
  if (pass_ == Pass::kRefill) {
    fits_ = fits_ && launches_ < recorded.size() && recorded[launches_] == launch;
  }
  ++launches_;
  return pass_ == Pass::kCapture;
}

std::size_t Recorder::next_room(std::size_t elements) {
  std::vector<std::size_t>& rooms = recording_.rooms_;
  if (pass_ == Pass::kMeasure) rooms.push_back(std::max(kLeastRoom, std::bit_ceil(elements)));
  const std::size_t piece = pieces_++;
  if (piece < rooms.size() && elements <= rooms[piece]) return rooms[piece];
  fits_ = false;
  return elements;
}

}  // namespace tributary::cuda
