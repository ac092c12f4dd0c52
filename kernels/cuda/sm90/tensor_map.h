// Internal to kernels/cuda: the cache in the form that bulk tensor copies take. Shows no vendor
// type.
#pragma once

#include <cstddef>

#include "core/interface/backend.h"

struct CUtensorMap_st;

namespace tributary::cuda {

/// A CUtensorMap, by value: what AttendLaunch::cache_map points to. Made once per cache.
class CacheMap {
 public:
  /// `cache` is device memory, [layers][pages][kPageTokens][512 + 64] bf16, aligned to 128 bytes.
  /// Boxes are a page's rows by 64 columns, swizzled by 128 bytes. Calls the driver through the
  /// runtime, so that nothing links to it. Throws kUnsupported if the driver has no tensor maps and
  /// kInternal if it refuses.
  CacheMap(const std::byte* cache, const CacheLayout& layout);

  [[nodiscard]] const CUtensorMap_st* get() const noexcept {
    return reinterpret_cast<const CUtensorMap_st*>(bytes_);
  }

 private:
  static constexpr std::size_t kBytes = 128;  // sizeof CUtensorMap, at least its alignof: checked
  alignas(kBytes) std::byte bytes_[kBytes];
};

}  // namespace tributary::cuda
