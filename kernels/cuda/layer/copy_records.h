// Kernels that move whole records: rows into their slots, records by index.
#pragma once

#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/layer/layer.h"

namespace tributary::cuda {

/// A latent row of 576 bf16 is 72 units of 16 bytes; wider records take more blocks.
inline constexpr unsigned kCopyThreads = 128;

/// T is the widest type that divides every address and size: ptx::Chunk, or a byte.
template <typename T>
TRIBUTARY_DEVICE void copy_record(std::byte* dst, const std::byte* src, std::size_t bytes,
                                  std::size_t first, std::size_t step) {
  auto* to = reinterpret_cast<T*>(dst);
  const auto* from = reinterpret_cast<const T*>(src);
  for (std::size_t i = first; i < bytes / sizeof(T); i += step) to[i] = from[i];
}

/// One block a row.
template <typename T>
TRIBUTARY_DEVICE void append_block(const AppendLaunch& a) {
  const AppendTask task = a.tasks[ptx::block()];
  if (task.page == kNoPage) return;
  const std::int64_t page =
      static_cast<std::int64_t>(a.item_layer[task.item]) * a.pages + task.page;
  const auto row = static_cast<std::size_t>(page * kPageTokens + task.slot);
  copy_record<T>(a.cache + row * a.row_bytes,
                 a.source + static_cast<std::size_t>(task.source) * a.source_stride_bytes,
                 a.row_bytes, ptx::thread(), kCopyThreads);
}

/// Block (i, j) copies the j-th of `shares` interleaved shares of record i.
template <typename T>
TRIBUTARY_DEVICE void gather_block(const GatherLaunch& g, unsigned shares) {
  const std::int64_t record = g.index[ptx::block()];
  if (record == kNoRecord) return;
  copy_record<T>(g.dst + static_cast<std::size_t>(ptx::block()) * g.record_bytes,
                 g.src + static_cast<std::size_t>(record) * g.record_bytes, g.record_bytes,
                 static_cast<std::size_t>(ptx::block_y()) * kCopyThreads + ptx::thread(),
                 static_cast<std::size_t>(shares) * kCopyThreads);
}

}  // namespace tributary::cuda
