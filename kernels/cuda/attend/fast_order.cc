#include "kernels/cuda/attend/fast_order.h"

#include <algorithm>
#include <cstddef>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/interface/visible_rows.h"
#include "kernels/cuda/attend/cost.h"

namespace tributary::cuda {
namespace {

// Merges of a task's pieces, neighbours first: each level halves them, the last writes the state.
void add_merges(std::vector<std::int64_t> pieces, const LeafTask& task, FastOrder& order) {
  for (std::int32_t level = 0; pieces.size() > 1; ++level) {
    order.merge_levels = std::max(order.merge_levels, level + 1);
    std::vector<std::int64_t> left;
    for (std::size_t i = 0; i < pieces.size(); i += 2) {
      left.push_back(pieces[i]);
      if (i + 1 == pieces.size()) break;
      order.merges.push_back({.dst = pieces.size() == 2 ? task.state : pieces[i],
                              .left = pieces[i],
                              .right = pieces[i + 1],
                              .tokens = task.tokens,
                              .level = level});
    }
    pieces = std::move(left);
  }
}

}  // namespace

FastSchedule fast_schedule(std::span<const std::int32_t> lengths, int parts) {
  check_schedule(lengths.size(), 1, 1, parts);
  FastSchedule schedule;
  for (const std::int32_t length : lengths) {
    if (length < 0) fail(ErrorCode::kInvalidArgument, "schedule: length {}", length);
    schedule.total += ceil_div(length, kPageTokens) + kFixedPages;
  }
  schedule.payload = (schedule.total + parts - 1) / parts + kFixedPages;
  const auto requests = static_cast<std::int32_t>(lengths.size());
  schedule.first_split.assign(lengths.size() + 1, 0);
  std::int32_t request = 0;
  std::int64_t page = 0;  // of the request, where the next part begins
  std::int32_t splits = 0;
  for (int p = 0; p < parts; ++p) {
    FastPart part{.begin_request = request,
                  .begin_token = static_cast<std::int32_t>(page * kPageTokens)};
    std::int64_t room = schedule.payload;
    while (request < requests) {
      const std::int32_t length = lengths[static_cast<std::size_t>(request)];
      const std::int64_t left = ceil_div(length, kPageTokens) - page + kFixedPages;
      if (room < left) {
        if (room > kFixedPages) {
          page += room - kFixedPages;
          ++splits;
        }
        break;
      }
      room -= left;
      schedule.first_split[static_cast<std::size_t>(++request)] = ++splits;
      page = 0;
    }
    if (page > 0) {
      part.end_request = request;
      part.end_token = static_cast<std::int32_t>(page * kPageTokens);
    } else if (request > 0) {
      part.end_request = request - 1;
      part.end_token = lengths[static_cast<std::size_t>(request - 1)];
    }
    schedule.parts.push_back(part);
  }
  return schedule;
}

FastOrder fast_order(std::span<const LeafTask> tasks, int heads, int unit_rows, int parts) {
  check_schedule(tasks.size(), heads, unit_rows, parts);
  const auto units_of = [&](const LeafTask& task) {
    return (task.tokens * heads + unit_rows - 1) / unit_rows;
  };
  std::vector<std::int32_t> lengths;
  int most_units = 1;
  for (const LeafTask& task : tasks) {
    lengths.push_back(visible_rows(task, task.tokens - 1));
    most_units = std::max(most_units, units_of(task));
  }
  const FastSchedule fast = fast_schedule(lengths, std::max(1, parts / most_units));
  FastOrder order;
  std::vector<std::vector<WorkUnit>> work(static_cast<std::size_t>(parts));
  std::vector<std::vector<std::int64_t>> states(tasks.size());  // of a task's pieces
  for (std::size_t p = 0; p < fast.parts.size(); ++p) {
    const FastPart& part = fast.parts[p];
    for (std::int32_t r = part.begin_request; r <= part.end_request; ++r) {
      const auto request = static_cast<std::size_t>(r);
      if (request == tasks.size()) break;
      const std::int32_t begin = r == part.begin_request ? part.begin_token : 0;
      const std::int32_t end = r == part.end_request ? part.end_token : lengths[request];
      LeafTask piece = tasks[request];
      const bool whole = fast.first_split[request + 1] - fast.first_split[request] == 1;
      if (!whole) {
        piece.first_page += begin / kPageTokens;
        piece.leaf_begin += begin;
        piece.rows = end - begin;
        piece.state = kScratchRecord + order.scratch_records;
        order.scratch_records += piece.tokens;
        states[request].push_back(piece.state);
      }
      for (int u = 0; u < units_of(piece); ++u) {
        const std::size_t part_of_unit =
            p * static_cast<std::size_t>(most_units) + static_cast<std::size_t>(u);
        work[part_of_unit % work.size()].push_back(
            {static_cast<std::int32_t>(order.tasks.size()), u * unit_rows});
      }
      order.tasks.push_back(piece);
    }
  }
  order.schedule.part_begin.push_back(0);
  for (const std::vector<WorkUnit>& units : work) {
    order.schedule.units.insert(order.schedule.units.end(), units.begin(), units.end());
    order.schedule.part_begin.push_back(static_cast<std::int32_t>(order.schedule.units.size()));
  }
  for (std::size_t r = 0; r < tasks.size(); ++r) {
    if (!states[r].empty()) add_merges(std::move(states[r]), tasks[r], order);
  }
  std::ranges::stable_sort(order.merges, {}, &MergeOp::level);
  return order;
}

}  // namespace tributary::cuda
