// Weights in the form that products read.
#pragma once

#include <cstddef>

#include "core/base/dtype.h"
#include "core/interface/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_memory.h"

namespace tributary::cpu {

/// A weight in panels of kPanel outputs, [batch][panel], each as GemmKernelArgs has it: a panel is
/// read once, from front to back. It is stored in the narrowest type that gives every value back to
/// the bit, whatever its original type (published bf16 and FP8 weights arrive as fp32), because
/// products of few tokens take as long as reading the weight: FP8 e4m3 beside the view's scales,
/// bf16, or fp32. The last panel is padded with zeros.
class PackedWeight final : public Weight {
 public:
  /// Throws kPoolFull.
  PackedWeight(const WeightView& view, ThreadPool& pool);

  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::size_t panels() const noexcept { return panels_; }
  [[nodiscard]] const std::byte* panel(std::size_t batch, std::size_t panel) const noexcept {
    return data_.get() + (batch * panels_ + panel) * panel_bytes_;
  }

 private:
  /// Allocates and packs. Stops and returns false at the first panel that `dtype` cannot hold
  /// exactly. `pack_panel(view, batch, first output, panel)` says whether it can.
  template <typename PackPanel>
  bool pack(const WeightView& view, ThreadPool& pool, DType dtype, const PackPanel& pack_panel);

  DType dtype_ = DType::kF32;  // as stored
  std::size_t panels_;
  std::size_t panel_bytes_ = 0;
  AlignedBytes data_;
};

}  // namespace tributary::cpu
