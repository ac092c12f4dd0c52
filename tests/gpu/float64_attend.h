// Attention in float64 on the device: the reference of the correctness grid, which would take hours
// on the host. Itself checked against core/reference.
#pragma once

#include <cstdint>

#include "core/base/dtype.h"

struct CUstream_st;

namespace tributary::test {

inline constexpr int kGridRank = 512;
inline constexpr int kGridLatent = 576;
/// Doubles of one (token, head): o, lse, then the norm of its weights, sqrt(sum of p^2) with sum of
/// p 1.
inline constexpr int kGridRecord = kGridRank + 2;
/// Scores of one (token, head) lie in shared memory.
inline constexpr int kGridMostRows = 4608;

/// Token i of a sequence sees its first clamp(query_position + i + 1, 0, rows) rows.
struct GridSequence {
  std::int32_t rows = 0;        // at most kGridMostRows
  std::int32_t first_page = 0;  // in block_table
  std::int64_t query_position = 0;
};

struct GridAttend {
  const bf16* rows = nullptr;  // [page][64][kGridLatent]
  const std::int32_t* block_table = nullptr;
  const GridSequence* sequences = nullptr;
  int count = 0, tokens = 0, heads = 0;
  const bf16* queries = nullptr;  // [sequence][token][head][kGridLatent]
  float softmax_scale = 0;
  double* states = nullptr;  // [sequence][token][head][kGridRecord]; (0, -inf, 0) of nothing
};

/// Enqueues; false where the launch is refused.
[[nodiscard]] bool float64_attend(const GridAttend& attend, CUstream_st* stream);

}  // namespace tributary::test
