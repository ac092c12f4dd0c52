// The order of work of `--merge-order fast`: pieces of any number of pages, balanced without regard
// to leaves. Sums depend on the batch then; the canonical order is schedule_attend().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/interface/backend.h"
#include "kernels/cuda/attend/attend.h"

namespace tributary::cuda {

/// From token begin_token of begin_request up to token end_token of end_request, exclusive. A part
/// without work begins after the last request.
struct FastPart {
  std::int32_t begin_request = 0, begin_token = 0, end_request = 0, end_token = 0;
  friend bool operator==(const FastPart&, const FastPart&) = default;
};

/// FlashMLA's published schedule, which splits anywhere between pages: a request of n pages costs n
/// + 5. Each part takes up to ceil(total / parts) + 5, greedily in order, and a request that does
/// not fit continues in the next part. Its sums depend on the batch: only `--merge-order fast` uses
/// it.
struct FastSchedule {
  std::int64_t total = 0;                 // cost of all requests
  std::int64_t payload = 0;               // that a part takes at most
  std::vector<FastPart> parts;            // as many as were asked for
  std::vector<std::int32_t> first_split;  // [requests + 1]: request i has the pieces first_split[i]
                                          // to first_split[i + 1] - 1
};
[[nodiscard]] FastSchedule fast_schedule(std::span<const std::int32_t> lengths, int parts);

/// Tasks split by that schedule. If tasks have several units of rows, they are split over that many
/// times fewer parts, and each part stands for one part per unit of rows.
struct FastOrder {
  std::vector<LeafTask> tasks;  // the pieces; if a task has several, they write scratch records
  AttendSchedule schedule;      // of the pieces
  std::vector<MergeOp> merges;  // by level, as in MergeArgs
  int merge_levels = 0;
  std::int64_t scratch_records = 0;
};
[[nodiscard]] FastOrder fast_order(std::span<const LeafTask> tasks, int heads, int unit_rows,
                                   int parts);

}  // namespace tributary::cuda
