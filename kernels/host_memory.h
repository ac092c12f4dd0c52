// Buffers and caches in host memory, for the backends whose device is the host. A cache here is
// laid out as its logical shape: [layer][page][kPageTokens][latent_dim] of row_format, without
// padding.
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

class HostCache final : public Cache {
 public:
  /// `layout` must be valid (core/interface/validate.h). Throws kPoolFull.
  HostCache(const CacheLayout& layout, const Backend* owner);

  [[nodiscard]] const Backend* owner() const noexcept { return owner_; }
  /// Bytes of one page of one layer.
  [[nodiscard]] std::size_t page_bytes() const noexcept {
    return static_cast<std::size_t>(kPageTokens) * layout().row_bytes();
  }
  /// First byte of page 0 of a layer; page p begins p * page_bytes() after it.
  [[nodiscard]] std::byte* layer_data(int layer) const noexcept {
    return memory_.get() + static_cast<std::size_t>(layer) *
                               static_cast<std::size_t>(layout().pages) * page_bytes();
  }

 private:
  const Backend* owner_;
  AlignedBytes memory_;
};

/// The cache, checked to be one that `backend` made. Throws kInvalidArgument for any other.
[[nodiscard]] const HostCache& own_cache(const Cache& cache, const Backend* backend);

/// Backend::host_page, store_rows and load_rows for backends that use this cache. Throw
/// kInvalidArgument.
[[nodiscard]] std::span<std::byte> page_rows(const HostCache& cache, int layer, std::int32_t page);
void store_page_rows(const HostCache& cache, int layer, std::int32_t page, std::int32_t slot,
                     std::span<const std::byte> rows);
void load_page_rows(const HostCache& cache, int layer, std::int32_t page, std::int32_t slot,
                    std::span<std::byte> rows);

/// Row `row` of a conversion whose device memory is host memory; `args` must be valid.
void convert_row(const ConvertArgs& args, std::size_t row);

/// Stores the rows of `args`, verbatim; `args` must be valid (core/interface/validate.h).
void append_rows(const HostCache& cache, const AppendArgs& args);

/// The source records of a gather whose device memory is host memory; `args` must be valid.
class HostIndices {
 public:
  explicit HostIndices(const GatherArgs& args)
      : args_(args), indices_(args.index), records_(kIndexBound + 1) {
    if (args.selected.most == 0) return;
    indices_ = {args.selected.data, static_cast<std::size_t>(args.selected.most)};
    records_ = args.selected.records;
  }

  [[nodiscard]] std::size_t size() const noexcept { return indices_.size(); }
  /// Null: no record.
  [[nodiscard]] const std::byte* record(std::size_t i) const noexcept {
    const std::int64_t index = indices_[i];
    if (index < 0 || index >= records_) return nullptr;
    return args_.src + static_cast<std::size_t>(index) * args_.record_bytes;
  }

 private:
  const GatherArgs& args_;
  std::span<const std::int64_t> indices_;
  std::int64_t records_;
};

}  // namespace tributary
