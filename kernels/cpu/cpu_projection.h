// The operations of a layer that are not attention, run on the pool.
#pragma once

#include <vector>

#include "core/interface/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/rope_angles.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/host_memory.h"

namespace tributary::cpu {

/// Arguments are valid (core/interface/validate.h). Memory grows to the largest product and is
/// kept.
class Projection {
 public:
  Projection(const KernelTable& kernels, ThreadPool& pool);

  void gemm(const PackedWeight& weight, const GemmArgs& args);
  void run(const RmsNormArgs& args);
  void run(const RopeArgs& args);
  void run(const ConvertArgs& args);
  void run(const GatherArgs& args);

 private:
  /// The product of as many tokens as are packed at a time, or fewer.
  void gemm_part(const GemmKernel& kernel, const PackedWeight& weight, const GemmArgs& args);

  const KernelTable& kernels_;
  ThreadPool& pool_;
  RopeAngles angles_;
  std::vector<AlignedBytes> scratch_;  // kGemmScratch floats for each thread
  std::size_t packed_bytes_ = 0;
  AlignedBytes packed_;  // the activations of a product
};

}  // namespace tributary::cpu
