// The simplest computation: scores, their maximum, weights, their sum, the weighted mean.
#include <cuda_runtime.h>

#include <limits>

#include "tests/gpu/float64_attend.h"

namespace tributary::test {
namespace {

constexpr int kThreads = 128;

/// Block (sequence x token, head).
__global__ void float64_kernel(GridAttend a) {
  __shared__ double scores[kGridMostRows];
  const int sequence = static_cast<int>(blockIdx.x) / a.tokens;
  const int token = static_cast<int>(blockIdx.x) % a.tokens;
  const std::int64_t record = static_cast<std::int64_t>(blockIdx.x) * a.heads + blockIdx.y;
  const GridSequence s = a.sequences[sequence];
  const bf16* query = a.queries + record * kGridLatent;
  double* state = a.states + record * kGridRecord;
  const std::int64_t bound = s.query_position + token + 1;
  const int visible = static_cast<int>(bound < 0 ? 0 : (bound < s.rows ? bound : s.rows));
  const auto row_of = [&](int row) {
    const std::int64_t page = a.block_table[s.first_page + row / 64];
    return a.rows + (page * 64 + row % 64) * kGridLatent;
  };
  for (int row = static_cast<int>(threadIdx.x); row < visible; row += kThreads) {
    const bf16* values = row_of(row);
    double score = 0;
    for (int i = 0; i < kGridLatent; ++i) {
      score += static_cast<double>(to_float(query[i])) * static_cast<double>(to_float(values[i]));
    }
    scores[row] = score * static_cast<double>(a.softmax_scale);
  }
  __syncthreads();
  double largest = -std::numeric_limits<double>::infinity();
  for (int row = 0; row < visible; ++row) largest = fmax(largest, scores[row]);
  __syncthreads();
  for (int row = static_cast<int>(threadIdx.x); row < visible; row += kThreads) {
    scores[row] = exp(scores[row] - largest);
  }
  __syncthreads();
  double sum = 0;
  double squares = 0;
  for (int row = 0; row < visible; ++row) {
    sum += scores[row];
    squares += scores[row] * scores[row];
  }
  for (int c = static_cast<int>(threadIdx.x); c < kGridRank; c += kThreads) {
    double value = 0;
    for (int row = 0; row < visible; ++row) {
      value += scores[row] * static_cast<double>(to_float(row_of(row)[c]));
    }
    state[c] = visible == 0 ? 0 : value / sum;
  }
  if (threadIdx.x == 0) {
    state[kGridRank] = visible == 0 ? -std::numeric_limits<double>::infinity() : largest + log(sum);
    state[kGridRank + 1] = visible == 0 ? 0 : sqrt(squares) / sum;
  }
}

}  // namespace

bool float64_attend(const GridAttend& attend, CUstream_st* stream) {
  const dim3 grid(static_cast<unsigned>(attend.count * attend.tokens),
                  static_cast<unsigned>(attend.heads));
  float64_kernel<<<grid, kThreads, 0, stream>>>(attend);
  return cudaGetLastError() == cudaSuccess;
}

}  // namespace tributary::test
