// The work of one block of the many-rows kernel for one unit of the schedule.
#pragma once

#include <cstdint>

#include "core/interface/backend.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/unit.h"
#include "kernels/cuda/sm90/layout.h"

namespace tributary::cuda::sm90 {

struct Work {
  const LeafTask* task = nullptr;
  int first_row = 0;  // of this block, counted as in attend.h
  int rows = 0;       // of the task: tokens * heads
  int seen = 0;       // rows of the leaf that the unit's last row sees; the same in all its blocks
  int pages = 0;      // that hold them
  int seen_by_all = 0;  // rows of the leaf that every row of the unit sees
};

TRIBUTARY_DEVICE Work work_of(const AttendLaunch& launch, int unit, int blocks,
                              std::uint32_t rank) {
  const WorkUnit where = launch.units[unit];
  Work work;
  work.task = launch.tasks + where.task;
  work.first_row = where.first_row + static_cast<int>(rank) * kRows;
  work.rows = work.task->tokens * launch.heads;
  const int end = where.first_row + blocks * kRows;
  const int last_token = ((end < work.rows ? end : work.rows) - 1) / launch.heads;
  work.seen = visible_rows(*work.task, last_token);
  work.pages = (work.seen + kPage - 1) / kPage;
  work.seen_by_all = visible_rows(*work.task, where.first_row / launch.heads);
  return work;
}

}  // namespace tributary::cuda::sm90
