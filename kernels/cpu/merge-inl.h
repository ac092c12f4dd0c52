// The merge of two partial states, the only one in the CPU backend.

#if defined(TRIBUTARY_KERNELS_CPU_MERGE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TRIBUTARY_KERNELS_CPU_MERGE_INL_H_
#undef TRIBUTARY_KERNELS_CPU_MERGE_INL_H_
#else
#define TRIBUTARY_KERNELS_CPU_MERGE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tributary::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// dst = (w_left * left + w_right * right) / (w_left + w_right). The weights are divided instead of
/// every column, so that reading and writing the states dominates the time. A tail uses the same
/// vector operations on a padded copy, so that every column has the same arithmetic.
HWY_INLINE void blend(const float* left, const float* right, std::size_t width, float w_left,
                      float w_right, float* dst) {
  const hn::ScalableTag<float> d;
  const std::size_t lanes = hn::Lanes(d);
  const float total = w_left + w_right;
  const auto wl = hn::Set(d, w_left / total);
  const auto wr = hn::Set(d, w_right / total);
  const auto mix = [&](auto l, auto r) HWY_ATTR { return hn::MulAdd(wl, l, hn::Mul(wr, r)); };
  std::size_t c = 0;
  for (; c + lanes <= width; c += lanes) {
    hn::StoreU(mix(hn::LoadU(d, left + c), hn::LoadU(d, right + c)), d, dst + c);
  }
  if (c == width) return;
  HWY_ALIGN float tail[2][hn::MaxLanes(hn::ScalableTag<float>())] = {};
  std::copy_n(left + c, width - c, tail[0]);
  std::copy_n(right + c, width - c, tail[1]);
  hn::Store(mix(hn::Load(d, tail[0]), hn::Load(d, tail[1])), d, tail[0]);
  std::copy_n(tail[0], width - c, dst + c);
}

inline void merge(const MergeKernelArgs& args) {
  const hn::ScalableTag<float> d;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<float>());
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  const std::size_t lse = args.heads * args.width;
  for (std::size_t first = args.head_begin; first < args.head_end; first += kLanes) {
    // Computes the weights for a vector of heads at a time; lanes without a head stay empty.
    const std::size_t count = std::min(kLanes, args.head_end - first);
    HWY_ALIGN float left[kLanes];
    HWY_ALIGN float right[kLanes];
    HWY_ALIGN float merged[kLanes];
    for (std::size_t i = 0; i < kLanes; ++i) {
      const float l = i < count ? args.left[lse + first + i] : kEmpty;
      const float r = i < count ? args.right[lse + first + i] : kEmpty;
      // Other kernels use +inf or NaN for the empty set.
      left[i] = std::isfinite(l) ? l : kEmpty;
      right[i] = std::isfinite(r) ? r : kEmpty;
    }
    const auto l = hn::Load(d, left);
    const auto r = hn::Load(d, right);
    const auto max = hn::Max(l, r);
    // If both are empty, max is -inf and these are NaN, which nobody reads.
    const auto w_left = exp_not_positive(d, hn::Sub(l, max));
    const auto w_right = exp_not_positive(d, hn::Sub(r, max));
    hn::Store(hn::Add(max, log_positive(d, hn::Add(w_left, w_right))), d, merged);
    hn::Store(w_left, d, left);
    hn::Store(w_right, d, right);
    HWY_ALIGN float maximum[kLanes];
    hn::Store(max, d, maximum);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t head = first + i;
      const float* o_left = args.left + head * args.width;
      const float* o_right = args.right + head * args.width;
      float* o = args.dst + head * args.width;
      // A side of weight 0 is skipped: 0 * NaN would poison the other, whose bits stay.
      if (maximum[i] == kEmpty) {
        std::fill_n(o, args.width, 0.0F);
        merged[i] = kEmpty;
      } else if (right[i] == 0) {
        if (o != o_left) std::copy_n(o_left, args.width, o);
        merged[i] = maximum[i];
      } else if (left[i] == 0) {
        if (o != o_right) std::copy_n(o_right, args.width, o);
        merged[i] = maximum[i];
      } else {
        blend(o_left, o_right, args.width, left[i], right[i], o);
      }
      args.dst[lse + head] = merged[i];
    }
  }
}

}  // namespace tributary::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // NOLINT(llvm-header-guard)
