#include "deploy/service/worker/process_memory.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>

namespace tributary {

void commit_cache(Backend& backend, Cache& cache) {
  const CacheLayout& layout = cache.layout();
  for (int layer = 0; layer < layout.layers; ++layer) {
    for (std::int32_t page = 0; page < layout.pages; ++page) {
      std::ranges::fill(backend.host_page(cache, layer, page), std::byte{0});
    }
  }
}

void give_back_freed_memory() noexcept {
#if defined(__GLIBC__)
  // Fresh memory costs a fault every 4 KiB: the memory that a step of some sequences needs stays in
  // its arena.
  constexpr int kLarge = 512 << 10;
  (void)mallopt(M_MMAP_THRESHOLD, kLarge);      // NOLINT(concurrency-mt-unsafe)
  (void)mallopt(M_TRIM_THRESHOLD, 2 * kLarge);  // NOLINT(concurrency-mt-unsafe)
  // The function takes its own lock, contrary to clang-tidy. A worker allocates on few threads at
  // once; every further arena would keep its own peak.
  (void)mallopt(M_ARENA_MAX, 2);  // NOLINT(concurrency-mt-unsafe)
#endif
}

}  // namespace tributary
