// Buffers and caches in host memory, for the backends whose device is the host. A cache here is
// laid out as its logical shape: [layer][page][kPageTokens][latent_dim] of row_format, without
// padding, or lies in the memory of somebody else, at strides.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "core/interface/backend.h"

namespace tributary {

/// Bytes of a huge page, on x86-64 and usually on AArch64: the unit of large allocations.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Allocations are aligned to this: a cache line, and the widest vector register.
inline constexpr std::size_t kHostAlignment = 64;

struct AlignedFree {
  void operator()(std::byte* data) const noexcept;
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedFree>;

/// Uninitialised memory aligned to kHostAlignment, never null. Throws kPoolFull with `what` and the
/// number of bytes if the allocation fails.
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

/// Rows in memory that a cache does not own: slot s of page p of layer l is at
/// data + l * layer_bytes + p * page_bytes + s * row_bytes. Strides are multiples of the size of an
/// element, rows at least as far apart as they are long.
struct BorrowedRows {
  const std::byte* data = nullptr;
  std::size_t layer_bytes = 0;
  std::size_t page_bytes = 0;
  std::size_t row_bytes = 0;
};

class HostCache final : public Cache {
 public:
  /// `layout` must be valid (core/interface/validate.h). Throws kPoolFull.
  HostCache(const CacheLayout& layout, const Backend* owner);
  /// Over `rows`, which outlive it. To be made const: what only reads a cache takes it as const,
  /// and nothing else may touch these.
  [[nodiscard]] static std::unique_ptr<const HostCache> over(const CacheLayout& layout,
                                                             const Backend* owner,
                                                             const BorrowedRows& rows);

  [[nodiscard]] const Backend* owner() const noexcept { return owner_; }
  /// From one row of a page to the next.
  [[nodiscard]] std::size_t row_bytes() const noexcept { return row_bytes_; }
  /// From one page of a layer to the next.
  [[nodiscard]] std::size_t page_bytes() const noexcept { return page_bytes_; }
  /// First byte of page 0 of a layer.
  [[nodiscard]] std::byte* layer_data(int layer) const noexcept {
    return data_ + static_cast<std::size_t>(layer) * layer_bytes_;
  }

 private:
  HostCache(const CacheLayout& layout, const Backend* owner, const BorrowedRows& rows);

  const Backend* owner_;
  AlignedBytes memory_;  // null: borrowed
  std::byte* data_;
  std::size_t layer_bytes_, page_bytes_, row_bytes_;
};

/// Row `row` of a conversion whose device memory is host memory; `args` must be valid.
void convert_row(const ConvertArgs& args, std::size_t row);

}  // namespace tributary
