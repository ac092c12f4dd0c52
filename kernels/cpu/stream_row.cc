#include "kernels/cpu/stream_row.h"

#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tributary::cpu {

void stream_row(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kStore = 16;
  if (reinterpret_cast<std::uintptr_t>(to) % kStore == 0 && bytes % kStore == 0) {
    for (std::size_t at = 0; at < bytes; at += kStore) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + at),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at)));
    }
    return;
  }
#endif
  std::memcpy(to, from, bytes);
}

void finish_rows() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace tributary::cpu
