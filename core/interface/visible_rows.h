// The keys that a query sees: the causal mask, once for every backend, the device code included.
#pragma once

#include <cstdint>

#include "core/interface/calls.h"

namespace tributary {

/// How many keys a query at `position` sees out of `rows` keys, the first of which is at position
/// `begin`: those at positions <= `position`, which are a prefix.
[[nodiscard]] constexpr std::int64_t visible_rows(std::int64_t position, std::int64_t begin,
                                                  std::int64_t rows) noexcept {
  const std::int64_t bound = position + 1 - begin;
  if (bound <= 0) return 0;
  return bound < rows ? bound : rows;
}

/// Rows of the task's leaf that its new token `token` sees.
[[nodiscard]] constexpr std::int32_t visible_rows(const LeafTask& task,
                                                  std::int32_t token) noexcept {
  return static_cast<std::int32_t>(
      visible_rows(task.query_position + token, task.leaf_begin, task.rows));
}

}  // namespace tributary
