#include "kernels/cpu/processor_choice.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tributary::cpu {
namespace {

struct Line {
  std::string_view vendor;
  unsigned family = 0;
  unsigned model = 0;
  std::array<std::string_view, 2> sets;  // best first
  std::string_view why;
  PrefetchInto prefetch = PrefetchInto::kFirstLevel;
};

// Sapphire Rapids, one thread, bf16 rows and queries, GFLOP/s of AVX3_BF16 and AVX3: 71 and 106
// with 128 heads, 70 and 55 with 16. vdpbf16ps runs there once in two cycles, fp32 multiply-adds
// twice a cycle. A prototype on tiles: 820 to 885, and 215 to 230. Emerald Rapids has the same
// core. Granite Rapids, its successor, was not measured: without tiles it is taken to be alike.
// Zen 4 (EPYC, model 17), the same figures: 185 and 87 with 128 heads, 165 and 56 with 16, AVX2 79
// and 49: a 512-bit instruction takes two passes there, and a dot product still does twice the work
// of a multiply-add in the time of one. The next block of rows (147 KiB) prefetched into L2 instead
// of L1: 1.4 to 1.5 x with up to 4 heads, the same with 16 and 128.
// Zen 2 and 3 (EPYC, models 49 and 1) have nothing above AVX2.
// Zen 5 (EPYC, model 2) does two dot products a cycle. Prefetches into L2 alone cost it 8%.
constexpr std::array kLines{
    Line{"GenuineIntel",
         6,
         143,
         {"AMX_BF16", "AVX3_BF16_FEW"},
         "Sapphire Rapids: tiles, or fp32 for more than 16 heads"},
    Line{"GenuineIntel",
         6,
         207,
         {"AMX_BF16", "AVX3_BF16_FEW"},
         "Emerald Rapids, the core of Sapphire Rapids: tiles, or fp32 for more than 16 heads"},
    Line{"GenuineIntel",
         6,
         173,
         {"AMX_BF16", "AVX3_BF16_FEW"},
         "Granite Rapids: tiles, or fp32 for more than 16 heads"},
    Line{"AuthenticAMD", 23, 49, {"AVX2", "SSE4"}, "Zen 2: fp32 in 256 bits, no BF16 instructions"},
    Line{"AuthenticAMD", 25, 1, {"AVX2", "SSE4"}, "Zen 3: fp32 in 256 bits, no BF16 instructions"},
    Line{"AuthenticAMD",
         25,
         17,
         {"AVX3_BF16", "AVX3"},
         "Zen 4: BF16 dot products, twice as fast as fp32 with any number of heads",
         PrefetchInto::kSecondLevel},
    Line{"AuthenticAMD",
         26,
         2,
         {"AVX3_BF16", "AVX3"},
         "Zen 5: BF16 dot products, two a cycle",
         PrefetchInto::kFirstLevel},
};

}  // namespace

Processor this_processor() {
  Processor processor;
#if defined(__x86_64__)
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(0, &a, &b, &c, &d) == 0) return processor;
  std::array<char, 12> vendor{};
  std::memcpy(vendor.data(), &b, 4);
  std::memcpy(vendor.data() + 4, &d, 4);
  std::memcpy(vendor.data() + 8, &c, 4);
  processor.vendor.assign(vendor.data(), vendor.size());
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return processor;
  // Intel's manual, CPUID leaf 1: the extended parts count for these families alone.
  const unsigned family = a >> 8 & 15U;
  processor.family = family == 15 ? family + (a >> 20 & 255U) : family;
  processor.model = a >> 4 & 15U;
  if (family == 6 || family == 15) processor.model += (a >> 16 & 15U) << 4;
#endif
  return processor;
}

ProcessorChoice choose_for_processor(const Processor& processor,
                                     std::span<const std::string_view> usable) {
  const auto what = processor.vendor.empty()
                        ? std::string("this processor")
                        : fmt::format("{} family {} model {}", processor.vendor, processor.family,
                                      processor.model);
  for (const Line& line : kLines) {
    if (line.vendor != processor.vendor || line.family != processor.family ||
        line.model != processor.model) {
      continue;
    }
    for (const std::string_view set : line.sets) {
      const auto found = std::ranges::find(usable, set);
      if (found == usable.end()) continue;
      return {static_cast<std::size_t>(found - usable.begin()),
              fmt::format("{}: {}", what, line.why), line.prefetch};
    }
    return {0, fmt::format("{}: {} is not usable here", what, fmt::join(line.sets, " or ")),
            line.prefetch};
  }
  return {.reason = fmt::format("{} has no line in the table of processors", what)};
}

}  // namespace tributary::cpu
