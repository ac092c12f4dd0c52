// Copies to memory that is in no cache.
#pragma once

#include <cstddef>

namespace tributary::cpu {

/// Writes whole lines without reading them first. Rows of a batch go to as many places in memory,
/// none of them in a cache: 64 rows of 1,152 bytes take 13.5 us with memcpy, 10 to 12 with their
/// lines requested ahead, and 4.9 so (Zen 4, one thread). Attention reads rows with prefetches,
/// wherever they are. A plain copy where the place or the size is no multiple of 16 bytes, or off
/// x86.
void stream_row(std::byte* to, const std::byte* from, std::size_t bytes);
/// After the last: other threads that see what this one writes next see the rows as well.
void finish_rows();

}  // namespace tributary::cpu
