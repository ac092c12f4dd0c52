// Packed weights and the operations of a layer that are not attention, run on the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_memory.h"

namespace tributary::cpu {

/// A weight in panels of kPanel outputs, [batch][panel][cols][kPanel]: a panel is read front to
/// back, once. Kept as bf16 where every value is one, whatever type it came in (published bf16
/// weights arrive as fp32): products of few tokens take as long as reading the weight. The last
/// panel is filled up with zeros.
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
  /// Allocates and packs; false where a value changed, and then the rest is left out.
  template <typename From, typename To>
  bool pack(const WeightView& view, ThreadPool& pool);

  DType dtype_ = DType::kF32;  // as kept
  std::size_t panels_;
  std::size_t panel_bytes_ = 0;
  AlignedBytes data_;
};

/// Arguments are valid (kernels/validate.h).
class Projection {
 public:
  Projection(const KernelTable& kernels, ThreadPool& pool);

  void gemm(const PackedWeight& weight, const GemmArgs& args);
  void rms_norm(const RmsNormArgs& args);
  void rope(const RopeArgs& args);
  void convert(const ConvertArgs& args);
  void gather(const GatherArgs& args);

 private:
  const KernelTable& kernels_;
  ThreadPool& pool_;
  std::vector<AlignedBytes> scratch_;  // kGemmScratch floats for each thread
};

}  // namespace tributary::cpu
