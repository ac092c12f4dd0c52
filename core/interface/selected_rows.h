// The part of a token's selection that lies in a leaf, for backends whose device is the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/interface/calls.h"
#include "core/interface/visible_rows.h"

namespace tributary {

/// Positions of the rows of the task's leaf that its new token `token` attends to, ascending. The
/// call has a selection.
[[nodiscard]] inline std::span<const std::int32_t> selected_rows(const AttendArgs& args,
                                                                 const LeafTask& task,
                                                                 std::int32_t token) {
  const auto* lists = reinterpret_cast<const std::byte*>(args.selected.data);
  const auto* list = reinterpret_cast<const std::int32_t*>(
      lists + static_cast<std::size_t>(task.query + token) * args.selected.stride_bytes);
  // As unsigned numbers a list is in order to its end: -1 is the largest.
  const auto before = [](std::int32_t position, std::int64_t bound) {
    return std::int64_t{static_cast<std::uint32_t>(position)} < bound;
  };
  const std::int32_t* end = list + args.selected.most;
  const std::int32_t* first = std::lower_bound(list, end, task.leaf_begin, before);
  return {first, std::lower_bound(first, end, task.leaf_begin + visible_rows(task, token), before)};
}

}  // namespace tributary
