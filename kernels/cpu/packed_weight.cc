// Packs weights in panels, and finds the narrowest type that holds them.
#include "kernels/cpu/packed_weight.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>

#include "core/base/ceil_div.h"
#include "kernels/cpu/f8_code.h"

namespace tributary::cpu {
namespace {

constexpr auto kOutputs = static_cast<std::int64_t>(kPanel);
constexpr auto kDepth = static_cast<std::int64_t>(kPanelDepth);

// Whether the conversion is exact.
bool convert(bf16 from, bf16& to) {
  to = from;
  return true;
}
bool convert(float from, float& to) {
  to = from;
  return true;
}
bool convert(float from, bf16& to) {
  const auto bits = std::bit_cast<std::uint32_t>(from);
  to.bits = static_cast<std::uint16_t>(bits >> 16);
  return (bits & 0xffffU) == 0;
}

template <typename From, typename To>
bool pack_panel(const WeightView& view, std::int64_t batch, std::int64_t first, std::byte* panel) {
  const auto outputs = std::min(kOutputs, view.rows - first);
  const From* from =
      static_cast<const From*>(view.data) + batch * view.batch_stride + first * view.row_stride;
  To* to = reinterpret_cast<To*>(panel);
  bool exact = true;
  // Squares of kPanel columns, so that both the rows and the panel stay in the cache.
  for (std::int64_t begin = 0; begin < view.cols; begin += kOutputs) {
    const std::int64_t end = std::min(view.cols, begin + kOutputs);
    for (std::int64_t n = 0; n < kOutputs; ++n) {
      for (std::int64_t k = begin; k < end; ++k) {
        const From value = n < outputs ? from[n * view.row_stride + k * view.col_stride] : From{};
        exact = convert(value, to[k * kOutputs + n]) && exact;
      }
    }
  }
  return exact;
}

// The scale of the view's element with this offset from the first.
float scale_of(const BlockScales& scales, std::int64_t offset) {
  const std::int64_t index = scales.first + offset;
  return scales.data[index / scales.cols / kScaleBlock * ceil_div(scales.cols, kScaleBlock) +
                     index % scales.cols / kScaleBlock];
}

bool pack_f8_panel(const WeightView& view, std::int64_t batch, std::int64_t first,
                   std::byte* panel) {
  const auto outputs = std::min(kOutputs, view.rows - first);
  const auto* values = static_cast<const float*>(view.data);
  for (std::int64_t begin = 0; begin < view.cols; begin += kDepth) {
    const std::int64_t depth = std::min(kDepth, view.cols - begin);
    auto* const scales = reinterpret_cast<float*>(
        panel + panel_bytes(DType::kF8E4M3, static_cast<std::size_t>(begin)));
    auto* const codes = reinterpret_cast<std::uint8_t*>(scales + kPanel);
    std::fill_n(scales, kPanel, 0.0F);
    std::fill_n(codes, depth * kOutputs, std::uint8_t{0});
    for (std::int64_t n = 0; n < outputs; ++n) {
      const std::int64_t row =
          batch * view.batch_stride + (first + n) * view.row_stride + begin * view.col_stride;
      const float scale = scale_of(view.scales, row);
      if (!f8_scale_fits(scale)) return false;
      scales[n] = f8_stored_scale(scale);
      for (std::int64_t k = 0; k < depth; ++k) {
        // A block of the matrix may end within the panel's: the value then decides whether this
        // scale serves as well.
        const auto code = f8_code_of(values[row + k * view.col_stride], scale);
        if (!code) return false;
        codes[k * kOutputs + n] = *code;
      }
    }
  }
  return true;
}

}  // namespace

PackedWeight::PackedWeight(const WeightView& view, ThreadPool& pool)
    : Weight(view.batch, view.rows, view.cols),
      panels_(ceil_div(static_cast<std::size_t>(view.rows), kPanel)) {
  if (view.dtype == DType::kBF16) {
    (void)pack(view, pool, DType::kBF16, pack_panel<bf16, bf16>);
    return;
  }
  if (view.scales.data != nullptr && pack(view, pool, DType::kF8E4M3, pack_f8_panel)) return;
  if (pack(view, pool, DType::kBF16, pack_panel<float, bf16>)) return;
  (void)pack(view, pool, DType::kF32, pack_panel<float, float>);
}

template <typename PackPanel>
bool PackedWeight::pack(const WeightView& view, ThreadPool& pool, DType dtype,
                        const PackPanel& pack_panel) {
  dtype_ = dtype;
  panel_bytes_ = panel_bytes(dtype, static_cast<std::size_t>(view.cols));
  data_ = nullptr;
  data_ =
      allocate_aligned(static_cast<std::size_t>(view.batch) * panels_ * panel_bytes_, "a weight");
  std::atomic<bool> lossless{true};
  pool.for_each(static_cast<std::size_t>(view.batch) * panels_, [&](std::size_t index, int) {
    if (!lossless.load(std::memory_order_relaxed)) return;
    const auto batch = static_cast<std::int64_t>(index / panels_);
    const auto first = static_cast<std::int64_t>(index % panels_) * kOutputs;
    if (!pack_panel(view, batch, first, data_.get() + index * panel_bytes_)) {
      lossless.store(false, std::memory_order_relaxed);
    }
  });
  return lossless.load();
}

}  // namespace tributary::cpu
