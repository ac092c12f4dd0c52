// What the machine can do at most, by the clock of the measurements beside it: BF16 dot products,
// the yardstick of decode attention, and bytes read from memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/cpu/thread_pool.h"

namespace tributary::bench {

/// Whether this machine has BF16 dot products on 512-bit vectors.
[[nodiscard]] bool has_dot_products();

/// Time that passes, or that the processor spends on this process: on a busy machine the second
/// says what a core does that nobody else wants (caches and memory are shared all the same).
enum class Clock { kWall, kProcessor };

/// Seconds, from some start; of all threads together under kProcessor.
[[nodiscard]] double seconds_now(Clock clock);

/// GFLOP/s of independent dot products on every thread of the pool at once, for `rounds` rounds (a
/// hundred microseconds are some 50,000). fp32 multiply-adds where there are no dot products.
[[nodiscard]] double dot_rate(cpu::ThreadPool& pool, std::size_t rounds, Clock clock);

/// GB/s at which every thread of the pool reads its part of `data`: the median of 15 parts, of at
/// least 16 MiB a thread, so that nothing of a part is in a cache when its turn comes again.
[[nodiscard]] double read_rate(cpu::ThreadPool& pool, std::span<const std::uint64_t> data,
                               Clock clock);

}  // namespace tributary::bench
