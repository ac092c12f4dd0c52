// What attention costs, for the schedules, and what they refuse.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/base/error.h"
#include "core/interface/backend.h"

namespace tributary::cuda {

/// What a piece costs besides its pages, in pages: reading its queries, filling the ring, writing
/// its states. FlashMLA's number, taken for whole leaves as well.
inline constexpr std::int64_t kFixedPages = 5;

[[nodiscard]] inline std::int64_t pages_of(std::int64_t rows) {
  return (rows + kPageTokens - 1) / kPageTokens;
}

/// Rows of the leaf that a token sees.
[[nodiscard]] inline std::int64_t rows_seen(const LeafTask& task, int token) {
  return std::clamp<std::int64_t>(task.query_position + token + 1 - task.leaf_begin, 0, task.rows);
}

inline void check_schedule(std::size_t tasks, int heads, int unit_rows, int parts) {
  if (tasks > INT32_MAX || heads < 1 || unit_rows < 1 || parts < 1) {
    fail(ErrorCode::kInvalidArgument,
         "schedule: {} tasks of {} heads in units of {} rows over {} parts, at least 1 each", tasks,
         heads, unit_rows, parts);
  }
}

}  // namespace tributary::cuda
