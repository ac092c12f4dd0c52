// Compiles the -inl headers once per instruction set and lists the results.
#include "kernels/cpu/kernel_table.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// All instruction sets that the compiler can make, the portable one included.
#define HWY_COMPILE_ALL_ATTAINABLE
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/kernel_table.cc"
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on
#include "kernels/cpu/amx_attend.h"
#include "kernels/cpu/attend-inl.h"
#include "kernels/cpu/bf16_attend.h"
#include "kernels/cpu/codes-inl.h"
#include "kernels/cpu/merge-inl.h"
#include "kernels/cpu/processor_choice.h"
#include "kernels/cpu/projection-inl.h"
#include "kernels/cpu/unpack-inl.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace {

void narrow(const float* src, bf16* dst, std::size_t count) {
  narrow_row(src, count, dst);
}
void widen(const bf16* src, float* dst, std::size_t count) {
  widen_row(src, count, dst);
}

// Whole vectors only: the count is rounded down.
void exp_all(const float* src, float* dst, std::size_t count) {
  const F32 d;
  for (std::size_t i = 0; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(exp_not_positive(d, hn::LoadU(d, src + i)), d, dst + i);
  }
}
void log_all(const float* src, float* dst, std::size_t count) {
  const F32 d;
  for (std::size_t i = 0; i + hn::Lanes(d) <= count; i += hn::Lanes(d)) {
    hn::StoreU(log_positive(d, hn::LoadU(d, src + i)), d, dst + i);
  }
}
float sum_lanes(const float* src) {
  const F32 d;
  return sum_of_lanes(d, hn::LoadU(d, src));
}

}  // namespace

const KernelTable& kernel_table() {
  constexpr GemmKernel kGemm{.packed_bytes = packed_bytes, .pack = pack, .multiply = gemm};
  static const KernelTable table = {
      .name = hwy::TargetName(HWY_TARGET),
      .attend_leaf = attend_leaf,
      .attend_dense = attend_dense,
      .merge = merge,
      .gemm = kGemm,
      .gemm_bf16 = kGemm,
      .gemm_f8 = kGemm,
      .rms_norm = rms_norm,
      .rotate = rotate,
      .to_bf16 = narrow,
      .to_float = widen,
      .widen_codes = widen_codes,
      .exp_not_positive = exp_all,
      .log = log_all,
      .lanes = hn::Lanes(F32()),
      .sum = sum_lanes,
  };
  return table;
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tributary::cpu {
namespace {

std::vector<const KernelTable*> find_usable_tables() {
  std::vector<const KernelTable*> tables;
  const std::int64_t supported = hwy::SupportedTargets();
  const auto add = [&](std::int64_t target, const KernelTable& table) {
    // The portable set runs on every machine, and is not in the mask if others are.
    if (target == HWY_STATIC_TARGET || (supported & target) != 0) tables.push_back(&table);
  };
  // Best first, as Highway orders its targets. Names that this version of Highway does not know are
  // not in HWY_TARGETS either: an undefined macro counts as 0 here.
#if HWY_TARGETS & HWY_AVX3_ZEN4
  add(HWY_AVX3_ZEN4, N_AVX3_ZEN4::kernel_table());
#endif
#if HWY_TARGETS & HWY_AVX3_DL
  add(HWY_AVX3_DL, N_AVX3_DL::kernel_table());
#endif
#if HWY_TARGETS & HWY_AVX3
  // Better than any of Highway's tables, and always based on the same one.
  if ((supported & HWY_AVX3) != 0) {
    const KernelTable& base = N_AVX3::kernel_table();
    std::vector<const KernelTable*> better;
    for (const KernelTable* table :
         {amx_kernel_table(base), bf16_kernel_table(base), few_bf16_kernel_table(base)}) {
      if (table != nullptr) better.push_back(table);
    }
    tables.insert(tables.begin(), better.begin(), better.end());
  }
  add(HWY_AVX3, N_AVX3::kernel_table());
#endif
#if HWY_TARGETS & HWY_AVX2
  add(HWY_AVX2, N_AVX2::kernel_table());
#endif
#if HWY_TARGETS & HWY_SSE4
  add(HWY_SSE4, N_SSE4::kernel_table());
#endif
#if HWY_TARGETS & HWY_SSSE3
  add(HWY_SSSE3, N_SSSE3::kernel_table());
#endif
#if HWY_TARGETS & HWY_SSE2
  add(HWY_SSE2, N_SSE2::kernel_table());
#endif
#if HWY_TARGETS & HWY_NEON
  add(HWY_NEON, N_NEON::kernel_table());
#endif
#if HWY_TARGETS & HWY_EMU128
  add(HWY_EMU128, N_EMU128::kernel_table());
#endif
#if HWY_TARGETS & HWY_SCALAR
  add(HWY_SCALAR, N_SCALAR::kernel_table());
#endif
  return tables;
}

/// The tables, the chosen one first.
struct Tables {
  std::vector<const KernelTable*> list = find_usable_tables();
  std::string reason;
  PrefetchInto prefetch = PrefetchInto::kFirstLevel;

  Tables() {
    std::vector<std::string_view> names;
    for (const KernelTable* table : list) names.push_back(table->name);
    ProcessorChoice choice = choose_for_processor(this_processor(), names);
    const auto chosen = list.begin() + static_cast<std::ptrdiff_t>(choice.index);
    std::rotate(list.begin(), chosen, chosen + 1);
    reason = std::move(choice.reason);
    prefetch = choice.prefetch;
  }
};

const Tables& tables() {
  static const Tables found;
  return found;
}

// One number per query row; whole vectors may run past the last one.
constexpr std::size_t kPerRow = kMaxQueryRows + kPanel;

}  // namespace

std::span<const KernelTable* const> usable_kernel_tables() {
  return tables().list;
}

const std::string& kernel_table_reason() {
  return tables().reason;
}

PrefetchInto prefetch_into() {
  return tables().prefetch;
}

std::size_t AttendWorkspace::floats(std::size_t depth, std::size_t width) noexcept {
  const std::size_t padded = round_up(width, kPanel);
  return kMaxQueryRows * (round_up(depth, kPanel) + kBlockRows + padded) +
         kBlockRows * (depth + padded) + 5 * kPerRow;
}

AttendWorkspace AttendWorkspace::carve(float* memory, std::size_t depth,
                                       std::size_t width) noexcept {
  const std::size_t padded = round_up(width, kPanel);
  const auto take = [&memory](std::size_t count) {
    float* part = memory;
    memory += count;
    return part;
  };
  AttendWorkspace ws;
  ws.keys = take(depth * kBlockRows);
  ws.values = take(padded * kBlockRows);
  ws.scores = take(kMaxQueryRows * kBlockRows);
  ws.output = take(kMaxQueryRows * padded);
  ws.max = take(kPerRow);
  ws.sum = take(kPerRow);
  ws.rescale = take(kPerRow);
  ws.block_sum = take(kPerRow);
  ws.visible = reinterpret_cast<std::int32_t*>(take(kPerRow));
  ws.query = take(kMaxQueryRows * round_up(depth, kPanel));
  return ws;
}

}  // namespace tributary::cpu
#endif  // HWY_ONCE
