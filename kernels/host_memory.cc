// Aligned allocation, and the cache built on it.
#include "kernels/host_memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cstdint>
#include <cstring>
#include <new>

#include "core/base/error.h"
#include "core/interface/validate.h"

namespace tributary {
namespace {

// The rows of a sequence are at random places in a large cache. A latent page spans 18 pages of 4
// KiB, and each costs a walk of the page table, which prefetches do not hide. This is a hint: if
// the system has no huge pages, nothing changes.
void ask_for_huge_pages([[maybe_unused]] std::byte* data, [[maybe_unused]] std::size_t bytes) {
#if defined(__linux__)
  const auto begin =
      (reinterpret_cast<std::uintptr_t>(data) + kHugePage - 1) / kHugePage * kHugePage;
  const auto end = (reinterpret_cast<std::uintptr_t>(data) + bytes) / kHugePage * kHugePage;
  if (begin < end) {
    (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // NOLINT
  }
#endif
}

}  // namespace

void AlignedFree::operator()(std::byte* data) const noexcept {
  ::operator delete[](data, std::align_val_t{kHostAlignment});
}

AlignedBytes allocate_aligned(std::size_t bytes, const char* what) {
  auto* data = static_cast<std::byte*>(
      ::operator new[](bytes, std::align_val_t{kHostAlignment}, std::nothrow));
  if (data == nullptr) {
    const double all =
        static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
    fail(ErrorCode::kPoolFull, "no memory for {}: {:.4g} GiB asked for, the machine has {:.4g} GiB",
         what, static_cast<double>(bytes) / 0x1p30, all / 0x1p30);
  }
  ask_for_huge_pages(data, bytes);
  return AlignedBytes(data);
}

std::unique_ptr<Buffer> make_host_buffer(std::size_t bytes) {
  return std::make_unique<HostBuffer>(allocate_aligned(bytes, "a buffer"), bytes);
}

HostCache::HostCache(const CacheLayout& layout, const Backend* owner)
    : Cache(layout),
      owner_(owner),
      memory_(allocate_aligned(cache_bytes(layout), "the cache of latent rows")),
      data_(memory_.get()),
      layer_bytes_(static_cast<std::size_t>(layout.pages) * kPageTokens * layout.row_bytes()),
      page_bytes_(kPageTokens * layout.row_bytes()),
      row_bytes_(layout.row_bytes()) {}

HostCache::HostCache(const CacheLayout& layout, const Backend* owner, const BorrowedRows& rows)
    : Cache(layout),
      owner_(owner),
      data_(const_cast<std::byte*>(rows.data)),  // NOLINT: the cache is const (over())
      layer_bytes_(rows.layer_bytes),
      page_bytes_(rows.page_bytes),
      row_bytes_(rows.row_bytes) {}

std::unique_ptr<const HostCache> HostCache::over(const CacheLayout& layout, const Backend* owner,
                                                 const BorrowedRows& rows) {
  const std::size_t element =
      dtype_bytes(plain_elements(layout.row_format).value_or(DType::kF8E4M3));
  const auto refuse = [&](const char* what, std::size_t value, std::size_t least) {
    fail(ErrorCode::kInvalidArgument,
         "borrowed rows: {} is {}, must be a multiple of {} from {} on", what, value, element,
         least);
  };
  if (rows.data == nullptr) fail(ErrorCode::kInvalidArgument, "borrowed rows: data is null");
  if (const auto at = reinterpret_cast<std::uintptr_t>(rows.data); at % element != 0) {
    refuse("the address", at, 0);
  }
  if (rows.row_bytes < layout.row_bytes() || rows.row_bytes % element != 0) {
    refuse("row_bytes", rows.row_bytes, layout.row_bytes());
  }
  if (rows.page_bytes % element != 0) refuse("page_bytes", rows.page_bytes, 0);
  if (rows.layer_bytes % element != 0) refuse("layer_bytes", rows.layer_bytes, 0);
  return std::unique_ptr<const HostCache>(new HostCache(layout, owner, rows));
}

void convert_row(const ConvertArgs& args, std::size_t row) {
  const std::byte* src = static_cast<const std::byte*>(args.src) + row * args.src_stride_bytes;
  std::byte* dst = static_cast<std::byte*>(args.dst) + row * args.dst_stride_bytes;
  const std::size_t values = args.src_row.values();
  if (args.src_row.format == args.dst_row.format) {
    std::memcpy(dst, src, args.src_row.bytes());
  } else if (args.src_row.format == RowFormat::kF32) {
    args.dst_row.encode({reinterpret_cast<const float*>(src), values}, dst);
  } else {
    args.src_row.decode(src, {reinterpret_cast<float*>(dst), values});
  }
}

}  // namespace tributary
