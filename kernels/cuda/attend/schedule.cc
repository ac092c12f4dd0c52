// The canonical order: whole leaves, balanced.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/interface/visible_rows.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/cost.h"

namespace tributary::cuda {

AttendSchedule schedule_attend(std::span<const LeafTask> tasks, int heads, int unit_rows,
                               int parts) {
  check_schedule(tasks.size(), heads, unit_rows, parts);
  std::vector<std::vector<std::int32_t>> chains;
  for (std::size_t t = 0; t < tasks.size(); ++t) chains.push_back({static_cast<std::int32_t>(t)});
  return schedule_chains(tasks, chains, heads, unit_rows, parts);
}

AttendSchedule schedule_chains(std::span<const LeafTask> tasks,
                               std::span<const std::vector<std::int32_t>> chains, int heads,
                               int unit_rows, int parts) {
  check_schedule(tasks.size(), heads, unit_rows, parts);
  struct Work {  // rows of a chain
    std::size_t chain = 0;
    std::int32_t first_row = 0;
    std::int64_t cost = 0;
  };
  std::vector<Work> works;
  for (std::size_t c = 0; c < chains.size(); ++c) {
    const int rows = tasks[static_cast<std::size_t>(chains[c].front())].tokens * heads;
    for (int first = 0; first < rows; first += unit_rows) {
      const int last = std::min(first + unit_rows, rows) - 1;
      Work work{.chain = c, .first_row = first};
      for (const std::int32_t task : chains[c]) {
        const std::int64_t seen = visible_rows(tasks[static_cast<std::size_t>(task)], last / heads);
        work.cost += kFixedPages + ceil_div(seen, kPageTokens);
      }
      works.push_back(work);
    }
  }
  // The longest first, each to the part with the least work so far: at most 4/3 of the optimal
  // time, in practice within one unit of it. Equal ones keep the tasks' order, so that units of one
  // task run at the same time and share the second-level cache.
  std::ranges::stable_sort(works, std::greater<>(), &Work::cost);
  using Load = std::pair<std::int64_t, std::size_t>;  // cost so far, part
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (std::size_t p = 0; p < static_cast<std::size_t>(parts); ++p) least.emplace(0, p);
  std::vector<std::size_t> part_of(works.size());
  AttendSchedule schedule;
  schedule.part_begin.assign(static_cast<std::size_t>(parts) + 1, 0);
  for (std::size_t i = 0; i < works.size(); ++i) {
    const auto [load, part] = least.top();
    least.pop();
    least.emplace(load + works[i].cost, part);
    schedule.busiest = std::max(schedule.busiest, load + works[i].cost);
    part_of[i] = part;
    schedule.part_begin[part + 1] += static_cast<std::int32_t>(chains[works[i].chain].size());
  }
  std::partial_sum(schedule.part_begin.begin(), schedule.part_begin.end(),
                   schedule.part_begin.begin());
  schedule.units.resize(static_cast<std::size_t>(schedule.part_begin.back()));
  std::vector<std::int32_t> next(schedule.part_begin.begin(), schedule.part_begin.end() - 1);
  for (std::size_t i = 0; i < works.size(); ++i) {
    for (const std::int32_t task : chains[works[i].chain]) {
      schedule.units[static_cast<std::size_t>(next[part_of[i]]++)] = {task, works[i].first_row};
    }
  }
  return schedule;
}

}  // namespace tributary::cuda
