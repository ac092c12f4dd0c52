// The choice of the instruction set that decodes best on a processor, and of the cache into which
// it prefetches: a table by vendor, family and model, never a timing, because the set decides bits
// and all workers of a pool must make the same choice.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tributary::cpu {

/// As CPUID has them, extended family and model included; empty and 0 on other architectures.
struct Processor {
  std::string vendor;  // GenuineIntel
  unsigned family = 0;
  unsigned model = 0;
};

[[nodiscard]] Processor this_processor();

/// The cache into which attention requests the rows that it reads next.
enum class PrefetchInto { kFirstLevel, kSecondLevel };

struct ProcessorChoice {
  std::size_t index = 0;  // of the usable sets
  std::string reason;
  PrefetchInto prefetch = PrefetchInto::kFirstLevel;  // no effect on bits
};

/// `usable`: names of instruction sets in the order of their instructions, not empty. The first of
/// the processor's line in the table that is usable; without a line, or if none of them is, the
/// first. The line also names the cache for prefetches; without one, the first level.
[[nodiscard]] ProcessorChoice choose_for_processor(const Processor& processor,
                                                   std::span<const std::string_view> usable);

}  // namespace tributary::cpu
