// The softmax over a leaf, page after page. A thread holds a quarter of each of two rows. All
// exponentials are powers of two, and every rounding is spelled out, so that all instantiations
// agree in every bit. A page of which a row sees nothing does not change a bit of the row's state.
#pragma once

#include <cstdint>

#include "kernels/cuda/attend/unit.h"
#include "kernels/cuda/sm90/layout.h"
#include "kernels/cuda/sm90/ptx90.h"

namespace tributary::cuda::sm90 {

/// A row's peak is a score that it has seen. It rises to the largest score only if that is more
/// than this above it, in units of log2: hardly ever after the first page, so that older sums need
/// no rescaling. The row's own scores alone decide. Weights are at most 2^8 instead of 1, which is
/// as exact in bf16 and fp32; a leaf of 2048 overflows with values above 2^108 instead of 2^116.
inline constexpr float kPeakSlack = 8;

struct SoftmaxState {
  float peak[2] = {kNothing, kNothing};  // in units of log2
  float sum[2] = {0, 0};  // of 2^(score - peak), over the columns of this group and this thread
};

/// The upper of the thread's two rows; the lower one is 8 further.
TRIBUTARY_DEVICE int upper_row() {
  const int thread = static_cast<int>(ptx::thread()) % kGroupThreads;
  return thread / 32 * 16 + thread % 32 / 4;
}
/// First of the thread's two columns of every eight.
TRIBUTARY_DEVICE int first_column() {
  return static_cast<int>(ptx::thread()) % 4 * 2;
}

/// 2^(from - to), where `to` is not less. For the empty set, whose sums are 0, it is 1: nothing
/// changes.
TRIBUTARY_DEVICE float factor_between(float from, float to) {
  return from == kNothing ? 1.0F : ptx::exp2_fast(ptx::subtract(from, to));
}

/// Masks each row's scores from column `limit` on.
TRIBUTARY_DEVICE void mask(float (&scores)[32], const int (&limit)[2]) {
  TRIBUTARY_UNROLL
  for (int i = 0; i < 32; ++i) {
    const int column = i / 4 * 8 + first_column() + i % 2;
    if (column >= limit[i / 2 % 2]) scores[i] = kNothing;
  }
}

/// Turns scores into weights relative to the peak, which rises if it has to. Older weights and
/// outputs must be multiplied by `factor`; state.sum already is.
TRIBUTARY_DEVICE void weigh(float (&scores)[32], float scale, SoftmaxState& state,
                            float (&factor)[2]) {
  TRIBUTARY_UNROLL
  for (int r = 0; r < 2; ++r) {
    float largest = kNothing;
    TRIBUTARY_UNROLL
    for (int i = 0; i < 32; i += 4) {
      largest = ptx::larger(largest, ptx::larger(scores[i + 2 * r], scores[i + 2 * r + 1]));
    }
    largest = ptx::larger(largest, ptx::shuffle_xor(largest, 1));
    largest = ptx::larger(largest, ptx::shuffle_xor(largest, 2));
    largest = ptx::multiply(largest, scale);
    const bool rises = largest > ptx::add(state.peak[r], kPeakSlack);
    const float peak = rises ? largest : state.peak[r];
    const float base = reference_score(peak);
    factor[r] = factor_between(state.peak[r], peak);
    state.peak[r] = peak;
    float sums[2] = {0, 0};
    TRIBUTARY_UNROLL
    for (int i = 0; i < 32; i += 4) {
      TRIBUTARY_UNROLL
      for (int j = 0; j < 2; ++j) {
        float& score = scores[i + 2 * r + j];
        score = ptx::exp2_fast(ptx::multiply_add(score, scale, -base));
        sums[j] = ptx::add(sums[j], score);
      }
    }
    state.sum[r] = ptx::multiply_add(state.sum[r], factor[r], ptx::add(sums[0], sums[1]));
  }
}

/// Weights as bf16, which is how a product takes 16 columns from registers: pairs of the upper and
/// the lower row, then the same 8 columns further.
TRIBUTARY_DEVICE void round_weights(const float (&weights)[32], std::uint32_t (&rounded)[4][4]) {
  TRIBUTARY_UNROLL
  for (int i = 0; i < 16; ++i) {
    rounded[i / 4][i % 4] = ptx::pack_bf16(weights[2 * i], weights[2 * i + 1]);
  }
}

/// The address that this lane gives for 16 columns of a tile that a warp moves between shared
/// memory and the registers of such a product. Few addresses: all would be kept in registers.
TRIBUTARY_DEVICE std::uint32_t fragment_at(std::uint32_t tile, int step) {
  const int thread = static_cast<int>(ptx::thread()) % kGroupThreads;
  return chunk_at(tile, thread / 32 * 16 + thread % 16, 2 * step + thread % 32 / 16);
}

/// Stores the weights into a tile, rows x tokens.
TRIBUTARY_DEVICE void store_weights(const std::uint32_t (&rounded)[4][4], std::uint32_t tile) {
  TRIBUTARY_UNROLL
  for (int step = 0; step < 4; ++step) {
    ptx::store_matrices(fragment_at(tile, step), rounded[step]);
  }
}

TRIBUTARY_DEVICE std::uint32_t shared_peak(std::uint32_t shared, int parity, int r) {
  return shared + kPeakAt + static_cast<std::uint32_t>(parity * kRows + upper_row() + 8 * r) * 4;
}

/// Tells the other group the peaks after a page of this parity.
TRIBUTARY_DEVICE void store_peaks(const SoftmaxState& state, std::uint32_t shared, int parity) {
  if (ptx::thread() % 4 == 0) {
    ptx::store_shared(shared_peak(shared, parity, 0), state.peak[0]);
    ptx::store_shared(shared_peak(shared, parity, 1), state.peak[1]);
  }
}
/// Moves the state to the peaks that the other group found.
TRIBUTARY_DEVICE void follow_peaks(SoftmaxState& state, std::uint32_t shared, int parity,
                                   float (&factor)[2]) {
  TRIBUTARY_UNROLL
  for (int r = 0; r < 2; ++r) {
    const float peak = ptx::load_shared(shared_peak(shared, parity, r));
    factor[r] = factor_between(state.peak[r], peak);
    state.sum[r] = ptx::multiply(state.sum[r], factor[r]);
    state.peak[r] = peak;
  }
}

/// Rescales only if some row of the warp needs it: a factor of 1 changes no bit. Called by whole
/// warps.
TRIBUTARY_DEVICE void rescale(float (&output)[128], const float (&factor)[2]) {
  if (!ptx::any_lane(factor[0] != 1 || factor[1] != 1)) return;
  TRIBUTARY_UNROLL
  for (int i = 0; i < 128; ++i) output[i] = ptx::multiply(output[i], factor[i / 2 % 2]);
}

}  // namespace tributary::cuda::sm90
