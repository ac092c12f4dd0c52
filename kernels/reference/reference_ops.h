// The reference backend's arithmetic. Arguments are valid (core/interface/validate.h).
#pragma once

#include <cstdint>

#include "core/interface/backend.h"
#include "kernels/host_memory.h"

namespace tributary::reference {

/// A weight widened to fp32, which is exact for both types that a WeightView may have:
/// [batch][rows][cols].
class DenseWeight final : public Weight {
 public:
  /// Throws kPoolFull.
  explicit DenseWeight(const WeightView& view);

  /// `cols` elements.
  [[nodiscard]] const float* row(std::int64_t batch, std::int64_t row) const noexcept {
    return reinterpret_cast<const float*>(data_.get()) + (batch * rows() + row) * cols();
  }

 private:
  AlignedBytes data_;
};

void attend(const HostCache& cache, const AttendArgs& args);
void gemm(const DenseWeight& weight, const GemmArgs& args);

void run(const MergeArgs& args);
void run(const GatherArgs& args);
void run(const RmsNormArgs& args);
void run(const RopeArgs& args);
void run(const ConvertArgs& args);
void run(const DenseAttendArgs& args);

}  // namespace tributary::reference
