// Internal to kernels/cuda: buffers and caches in device memory. A cache is laid out as its logical
// shape: [layer][page][kPageTokens][latent_dim] of row_format, without padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/interface/backend.h"
#include "kernels/cuda/sm90/tensor_map.h"

namespace tributary::cuda {

struct DeviceFree {
  void operator()(std::byte* data) const noexcept;
};
using DeviceBytes = std::unique_ptr<std::byte[], DeviceFree>;

/// Uninitialised memory of the current device, aligned to 256 bytes, never null. Throws kPoolFull
/// naming `what`.
[[nodiscard]] DeviceBytes allocate_device(std::size_t bytes, const char* what);

class CudaBuffer final : public Buffer {
 public:
  CudaBuffer(DeviceBytes memory, std::size_t bytes)
      : Buffer(memory.get(), bytes), memory_(std::move(memory)) {}

 private:
  DeviceBytes memory_;
};

class CudaCache final : public Cache {
 public:
  /// `layout` must be valid (core/interface/validate.h). Throws kPoolFull.
  CudaCache(const CacheLayout& layout, const Backend* owner);

  [[nodiscard]] const Backend* owner() const noexcept { return owner_; }
  [[nodiscard]] std::byte* data() const noexcept { return memory_.get(); }
  /// Bytes of one page of one layer.
  [[nodiscard]] std::size_t page_bytes() const noexcept {
    return static_cast<std::size_t>(kPageTokens) * layout().row_bytes();
  }
  /// Null if it was not made: only some kernels on some devices need one.
  [[nodiscard]] const CUtensorMap_st* map() const noexcept { return map_ ? map_->get() : nullptr; }
  void make_map() { map_.emplace(data(), layout()); }
  [[nodiscard]] std::byte* row(int layer, std::int32_t page, std::int32_t slot) const noexcept {
    const std::size_t pages =
        static_cast<std::size_t>(layer) * static_cast<std::size_t>(layout().pages) +
        static_cast<std::size_t>(page);
    return data() + pages * page_bytes() + static_cast<std::size_t>(slot) * layout().row_bytes();
  }

 private:
  const Backend* owner_;
  DeviceBytes memory_;
  std::optional<CacheMap> map_;
};

/// The cache, checked to be one that `backend` made. Throws kInvalidArgument for any other.
[[nodiscard]] const CudaCache& own_cache(const Cache& cache, const Backend* backend);

}  // namespace tributary::cuda
