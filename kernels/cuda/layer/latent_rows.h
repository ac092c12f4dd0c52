// Kernel of LatentRowsArgs: the two parts of a new row in one launch.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/layer/layer.h"
#include "kernels/cuda/layer/rms_norm.h"
#include "kernels/cuda/layer/rotation.h"

namespace tributary::cuda {

inline constexpr unsigned kRowThreads = kNormThreads;
inline constexpr std::uint32_t kRowSharedBytes = std::max(kNormSharedBytes, kRopeSharedBytes);

TRIBUTARY_DEVICE void latent_rows_block(const LatentRowsLaunch& l) {
  rms_norm_block(l.norm);
  ptx::sync_block();  // they share their shared memory
  rope_block(l.rope, kRowThreads);
}

}  // namespace tributary::cuda
