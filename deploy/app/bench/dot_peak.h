// The machine's limits, by the clock of the measurements beside it: its fastest products of bf16,
// which are the yardstick of decode attention, and bytes read from memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/cpu/thread_pool.h"

namespace tributary::bench {

/// Instructions that multiply bf16 values, or values widened from them, in fp32 sums. The last are
/// of 256 bits at most, whatever the machine has.
enum class Product { kTiles, kDotProducts, kMultiplyAdds, kHalfMultiplyAdds };

/// The fastest of this machine: tiles of AMX if they are usable; otherwise dot products on 512-bit
/// vectors, or fp32 multiply-adds if those are faster (measured once).
[[nodiscard]] Product best_product();
/// The products of an instruction set of the CPU backend, which the machine has; "": the fastest.
[[nodiscard]] Product product_of_set(std::string_view set);
/// `bf16 tiles`.
[[nodiscard]] std::string_view product_name(Product product) noexcept;

/// Wall time, or the processor time of this process. On a busy machine the second one shows the
/// speed of a core that is not shared (caches and memory still are).
enum class Clock { kWall, kProcessor };

/// Seconds, from some start; under kProcessor those of all threads together.
[[nodiscard]] double seconds_now(Clock clock);

/// GFLOP/s of independent products on every thread of the pool at once, for `rounds` rounds (a
/// hundred microseconds are some 50,000).
[[nodiscard]] double product_rate(cpu::ThreadPool& pool, Product product, std::size_t rounds,
                                  Clock clock);

/// GB/s at which every thread of the pool reads its part of `data`: the median of 15 parts, of at
/// least 16 MiB a thread, so that no part is still in a cache when it is read again.
[[nodiscard]] double read_rate(cpu::ThreadPool& pool, std::span<const std::uint64_t> data,
                               Clock clock);

}  // namespace tributary::bench
