// Internal to kernels/cuda: a CUDA graph of calls whose plan data has a fixed place.
//
// The same calls are made in passes. The first one measures their plan data; the second launches
// into a capture, with every piece of plan data at its place in one region; a later one (a refill)
// only compares the calls and collects the plan data that is to be sent there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/interface/backend.h"
#include "kernels/cuda/base/support.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/launches.h"

namespace tributary::cuda {

/// Device memory for plan data, kept when a recording ends: freeing it would wait for the device,
/// which may be waiting for peers. A region is reused after its last use on the same stream.
class PlanMemory {
 public:
  struct Region {
    DeviceBytes memory;
    std::size_t bytes = 0;
  };
  [[nodiscard]] Region take(std::size_t bytes);
  void put_back(Region region) { free_.push_back(std::move(region)); }

 private:
  std::vector<Region> free_;
};

struct GraphDestroyer {
  void operator()(cudaGraph_t graph) const noexcept { (void)cudaGraphDestroy(graph); }
};
struct GraphExecDestroyer {
  void operator()(cudaGraphExec_t exec) const noexcept { (void)cudaGraphExecDestroy(exec); }
};

class CudaRecording final : public Recording {
 public:
  CudaRecording(const Backend* owner, std::shared_ptr<PlanMemory> memory)
      : owner_(owner), memory_(std::move(memory)) {}
  ~CudaRecording() override;
  CudaRecording(const CudaRecording&) = delete;
  CudaRecording& operator=(const CudaRecording&) = delete;

  [[nodiscard]] const Backend* owner() const noexcept { return owner_; }
  [[nodiscard]] std::byte* plan_data() const noexcept { return region_.memory.get(); }

  void capture(cudaStream_t stream, const std::function<void()>& launches);
  void replay(cudaStream_t stream) const;

 private:
  friend class Recorder;

  const Backend* owner_;
  std::shared_ptr<PlanMemory> memory_;
  PlanMemory::Region region_;
  std::vector<std::size_t> rooms_;  // elements that the i-th piece of plan data has room for
  std::vector<Launch> launches_;
  std::vector<std::shared_ptr<const void>> kept_;
  std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, GraphDestroyer> graph_;
  std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphExecDestroyer> exec_;
};

/// Plan data on the device: the given elements, padded to `count` with elements that do nothing.
template <typename T>
struct Placed {
  const T* data = nullptr;
  std::int64_t count = 0;
};

/// One pass over the calls of a recording.
class Recorder {
 public:
  enum class Pass : std::uint8_t { kMeasure, kCapture, kRefill };
  /// `image` is memory for this pass. The backend keeps it, so that a refill does not allocate.
  Recorder(CudaRecording& recording, Pass pass, std::vector<std::byte>& image)
      : recording_(recording), pass_(pass), image_(image) {
    image_.clear();
  }

  template <typename T>
  [[nodiscard]] Placed<T> place(std::span<const T> part) {
    const std::size_t room = next_room(part.size());
    // In the first pass there is no region yet, and nothing is launched.
    const auto at = reinterpret_cast<std::uintptr_t>(recording_.plan_data()) + image_.size();
    add(std::as_bytes(part));
    const T nothing = no_work<T>();
    for (std::size_t i = part.size(); i < room; ++i) add(std::as_bytes(std::span(&nothing, 1)));
    image_.resize((image_.size() + 15) / 16 * 16);
    return {reinterpret_cast<const T*>(at), static_cast<std::int64_t>(room)};
  }
  /// Whether the caller must make this launch now.
  [[nodiscard]] bool take(const Launch& launch);
  /// In a refill: whether the next recorded launch is of this kind.
  template <typename T>
  [[nodiscard]] bool expects() const {
    return pass_ == Pass::kRefill && launches_ < recording_.launches_.size() &&
           std::holds_alternative<T>(recording_.launches_[launches_]);
  }
  /// Keeps device memory that the next launches use, for as long as the recording lives.
  void keep(std::shared_ptr<const void> memory) {
    if (pass_ == Pass::kCapture) recording_.kept_.push_back(std::move(memory));
  }
  /// Ends a first pass: makes the region.
  void end_measure() { recording_.region_ = recording_.memory_->take(image_.size()); }
  /// In a refill: whether the calls were the recorded ones, and none is missing.
  [[nodiscard]] bool fits() const noexcept {
    return fits_ && launches_ == recording_.launches_.size() && pieces_ == recording_.rooms_.size();
  }
  /// The plan data of this pass, to be copied to CudaRecording::plan_data().
  [[nodiscard]] std::span<const std::byte> image() const noexcept { return image_; }

 private:
  template <typename T>
  static T no_work() {
    if constexpr (std::is_same_v<T, AppendTask>) {
      return {.page = kNoPage};
    } else if constexpr (std::is_same_v<T, std::int64_t>) {
      return kNoRecord;
    } else {
      return {};
    }
  }
  [[nodiscard]] std::size_t next_room(std::size_t elements);
  void add(std::span<const std::byte> bytes) {
    image_.insert(image_.end(), bytes.begin(), bytes.end());
  }

  CudaRecording& recording_;
  Pass pass_;
  std::vector<std::byte>& image_;
  std::size_t pieces_ = 0;
  std::size_t launches_ = 0;
  bool fits_ = true;
};

}  // namespace tributary::cuda
