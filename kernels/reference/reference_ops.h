// The reference backend's arithmetic. Arguments are valid (kernels/validate.h).
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
void merge(const MergeArgs& args);
void attend_dense(const DenseAttendArgs& args);
void gemm(const DenseWeight& weight, const GemmArgs& args);
void rms_norm(const RmsNormArgs& args);
void rope(const RopeArgs& args);
void convert(const ConvertArgs& args);

}  // namespace tributary::reference
