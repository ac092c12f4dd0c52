// The cost of attention for the schedules, and the checks of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/error.h"
#include "core/interface/backend.h"

namespace tributary::cuda {

/// The fixed cost of a piece, in pages: reading its queries, filling the ring, writing its states.
/// FlashMLA's number, used for whole leaves as well.
inline constexpr std::int64_t kFixedPages = 5;

inline void check_schedule(std::size_t tasks, int heads, int unit_rows, int parts) {
  if (tasks > INT32_MAX || heads < 1 || unit_rows < 1 || parts < 1) {
    fail(ErrorCode::kInvalidArgument,
         "schedule: {} tasks of {} heads in units of {} rows over {} parts, at least 1 each", tasks,
         heads, unit_rows, parts);
  }
}

}  // namespace tributary::cuda
