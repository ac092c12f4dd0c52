// The canonical order: whole leaves, balanced.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/cost.h"

namespace tributary::cuda {

AttendSchedule schedule_attend(std::span<const LeafTask> tasks, int heads, int unit_rows,
                               int parts) {
  check_schedule(tasks.size(), heads, unit_rows, parts);
  std::vector<WorkUnit> units;
  std::vector<std::int64_t> costs;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const int rows = tasks[t].tokens * heads;
    for (int first = 0; first < rows; first += unit_rows) {
      units.push_back({static_cast<std::int32_t>(t), first});
      const int last = std::min(first + unit_rows, rows) - 1;
      costs.push_back(kFixedPages + pages_of(rows_seen(tasks[t], last / heads)));
    }
  }
  // The longest first, each to the part that has least to do so far: at most 4/3 of the best end,
  // in practice within one unit of it. Equal ones stay in the tasks' order, so that units of one
  // task run at the same time and share the second-level cache.
  std::vector<std::size_t> order(units.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return costs[i]; });
  using Load = std::pair<std::int64_t, std::size_t>;  // cost so far, part
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p) least.emplace(0, p);
  std::vector<std::size_t> part_of(units.size());
  AttendSchedule schedule;
  schedule.part_begin.assign(static_cast<std::size_t>(parts) + 1, 0);
  for (const std::size_t i : order) {
    const auto [load, part] = least.top();
    least.pop();
    least.emplace(load + costs[i], part);
    part_of[i] = part;
    ++schedule.part_begin[part + 1];
  }
  std::partial_sum(schedule.part_begin.begin(), schedule.part_begin.end(),
                   schedule.part_begin.begin());
  schedule.units.resize(units.size());
  std::vector<std::int32_t> next(schedule.part_begin.begin(), schedule.part_begin.end() - 1);
  for (const std::size_t i : order) {
    schedule.units[static_cast<std::size_t>(next[part_of[i]]++)] = units[i];
  }
  return schedule;
}

const AttendSchedule& CanonicalOrder::schedule(const AttendArgs& args, int unit_rows, int parts) {
  const std::array<int, 3> rest{args.heads, unit_rows, parts};
  if (rest != rest_ || !std::ranges::equal(args.tasks, tasks_)) {
    schedule_ = schedule_attend(args.tasks, args.heads, unit_rows, parts);
    tasks_.assign(args.tasks.begin(), args.tasks.end());
    rest_ = rest;
  }
  return schedule_;
}

}  // namespace tributary::cuda
