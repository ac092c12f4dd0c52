// The merge of two partial states (design section 2): the CUDA backend's only copy. One warp takes
// one head of one token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/interface/backend.h"
#include "kernels/cuda/attend/ptx.h"
#include "kernels/cuda/attend/unit.h"

namespace tributary::cuda {

inline constexpr int kMergeWarps = 4;  // heads of a block; the grid's x is an op

// Other kernels say +inf or NaN for the empty set.
TRIBUTARY_DEVICE float known_lse(float lse) {
  return lse > kNothing && lse < -kNothing ? lse : kNothing;
}

// dst = left * w_left + right * w_right, column by column; dst may be either of them.
TRIBUTARY_DEVICE void blend(const float* left, const float* right, float w_left, float w_right,
                            int width, int lane, float* dst) {
  for (int c = lane; c < width; c += 32) {
    dst[c] = ptx::multiply_add(w_left, left[c], ptx::multiply(w_right, right[c]));
  }
}
TRIBUTARY_DEVICE void copy(const float* from, int width, int lane, float* dst) {
  if (from == dst) return;
  for (int c = lane; c < width; c += 32) dst[c] = from[c];
}

TRIBUTARY_DEVICE void merge_head(const MergeLaunch& launch, const MergeOp& op, int token, int head,
                                 int lane) {
  const std::size_t record =
      static_cast<std::size_t>(launch.heads) * (static_cast<std::size_t>(launch.width) + 1);
  const std::size_t column = static_cast<std::size_t>(head) * launch.width;
  const std::size_t lse = static_cast<std::size_t>(launch.heads) * launch.width + head;
  float* dst = record_of(launch.states, launch.scratch, op.dst + token, record);
  const float* left = record_of(launch.states, launch.scratch, op.left + token, record);
  if (op.right == kNoState) {  // whatever it is
    copy(left + column, launch.width, lane, dst + column);
    if (lane == 0) dst[lse] = left[lse];
    return;
  }
  const float* right = record_of(launch.states, launch.scratch, op.right + token, record);
  const float lse_left = known_lse(left[lse]);
  const float lse_right = known_lse(right[lse]);
  const float maximum = ptx::larger(lse_left, lse_right);
  float merged = maximum;
  if (maximum == kNothing) {
    for (int c = lane; c < launch.width; c += 32) dst[column + c] = 0;
  } else {
    const float w_left = ptx::exp(ptx::subtract(lse_left, maximum));
    const float w_right = ptx::exp(ptx::subtract(lse_right, maximum));
    // A side of weight 0 is skipped: 0 * NaN would poison the other, whose bits stay.
    if (w_right == 0) {
      copy(left + column, launch.width, lane, dst + column);
    } else if (w_left == 0) {
      copy(right + column, launch.width, lane, dst + column);
    } else {
      const float total = ptx::add(w_left, w_right);
      merged = ptx::add(maximum, ptx::log(total));
      blend(left + column, right + column, ptx::divide(w_left, total), ptx::divide(w_right, total),
            launch.width, lane, dst + column);
    }
  }
  ptx::sync_warp();  // all lanes have read the lse that may be overwritten
  if (lane == 0) dst[lse] = merged;
}

TRIBUTARY_DEVICE void merge_block(const MergeLaunch& launch) {
  const MergeOp op = launch.ops[ptx::block()];
  const int head =
      static_cast<int>(ptx::block_y()) * kMergeWarps + static_cast<int>(ptx::thread()) / 32;
  if (head >= launch.heads) return;
  for (int token = 0; token < op.tokens; ++token) {
    merge_head(launch, op, token, head, static_cast<int>(ptx::thread()) % 32);
  }
}

}  // namespace tributary::cuda
