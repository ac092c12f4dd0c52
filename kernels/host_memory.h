// Buffers and caches in host memory, for the backends whose device is the host. A cache here is
// laid out as its logical shape: [layer][page][kPageTokens][latent_dim] of row_dtype, without
// padding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/interface/backend.h"

namespace tributary {

/// Bytes of a huge page, on x86-64 and mostly on AArch64: what large memory is asked for in.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Allocations are aligned to this: a cache line, and the widest vector register.
inline constexpr std::size_t kHostAlignment = 64;

struct AlignedFree {
  void operator()(std::byte* data) const noexcept;
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedFree>;

/// Uninitialised memory aligned to kHostAlignment, never null. Throws kPoolFull naming `what` and
/// the number of bytes when there is none.
[[nodiscard]] AlignedBytes allocate_aligned(std::size_t bytes, const char* what);

class HostBuffer final : public Buffer {
 public:
  HostBuffer(AlignedBytes memory, std::size_t bytes)
      : Buffer(memory.get(), bytes), memory_(std::move(memory)) {}

 private:
  AlignedBytes memory_;
};

/// Throws kPoolFull.
[[nodiscard]] std::unique_ptr<Buffer> make_host_buffer(std::size_t bytes);

class HostCache final : public Cache {
 public:
  /// `layout` must be valid (kernels/validate.h). Throws kPoolFull.
  HostCache(const CacheLayout& layout, const Backend* owner);

  [[nodiscard]] const Backend* owner() const noexcept { return owner_; }
  /// Bytes of one page of one layer.
  [[nodiscard]] std::size_t page_bytes() const noexcept {
    return static_cast<std::size_t>(kPageTokens) * layout().row_bytes();
  }
  /// First byte of page 0 of a layer; page p follows p * page_bytes() further on.
  [[nodiscard]] std::byte* layer_data(int layer) const noexcept {
    return memory_.get() + static_cast<std::size_t>(layer) *
                               static_cast<std::size_t>(layout().pages) * page_bytes();
  }

 private:
  const Backend* owner_;
  AlignedBytes memory_;
};

/// The cache as one that `backend` made. Throws kInvalidArgument for any other.
[[nodiscard]] const HostCache& own_cache(const Cache& cache, const Backend* backend);

/// Backend::host_page, store_rows and load_rows of a backend whose caches are these. Throw
/// kInvalidArgument.
[[nodiscard]] std::span<std::byte> page_rows(const HostCache& cache, int layer, std::int32_t page);
void store_page_rows(const HostCache& cache, int layer, std::int32_t page, std::int32_t slot,
                     std::span<const std::byte> rows);
void load_page_rows(const HostCache& cache, int layer, std::int32_t page, std::int32_t slot,
                    std::span<std::byte> rows);

/// Stores the rows of `args`, verbatim; `args` must be valid (kernels/validate.h).
void append_rows(const HostCache& cache, const AppendArgs& args);

}  // namespace tributary
