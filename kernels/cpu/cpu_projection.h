// Packed weights and the operations of a layer that are not attention, run on the pool.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/dtype.h"
#include "core/interface/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/rope_angles.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_memory.h"

namespace tributary::cpu {

/// A weight in panels of kPanel outputs, [batch][panel][cols][kPanel]: a panel is read once, from
/// front to back. It is stored as bf16 if every value is exact in bf16, whatever its original type
/// (published bf16 weights arrive as fp32), because products of few tokens take as long as reading
/// the weight. The last panel is padded with zeros.
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
  /// Allocates and packs. Stops and returns false at the first value that `To` cannot hold exactly.
  template <typename From, typename To>
  bool pack(const WeightView& view, ThreadPool& pool);

  DType dtype_ = DType::kF32;  // as stored
  std::size_t panels_;
  std::size_t panel_bytes_ = 0;
  AlignedBytes data_;
};

/// Arguments are valid (core/interface/validate.h).
class Projection {
 public:
  Projection(const KernelTable& kernels, ThreadPool& pool);

  void gemm(const PackedWeight& weight, const GemmArgs& args);
  void run(const RmsNormArgs& args);
  void run(const RopeArgs& args);
  void run(const ConvertArgs& args);
  void run(const GatherArgs& args);

 private:
  const KernelTable& kernels_;
  ThreadPool& pool_;
  RopeAngles angles_;
  std::vector<AlignedBytes> scratch_;  // kGemmScratch floats for each thread
};

}  // namespace tributary::cpu
