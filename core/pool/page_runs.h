// Consecutive rows as they lie in pages.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/limits.h"

namespace tributary {

/// Consecutive rows inside one page of a worker.
struct PageRun {
  std::int32_t page = 0;
  std::int32_t slot = 0;
  std::int32_t count = 0;
};

/// Appends the runs of rows first_row .. first_row + rows - 1 of a leaf that lies in `pages`.
inline void append_page_runs(std::span<const std::int32_t> pages, std::int64_t first_row,
                             std::int64_t rows, std::vector<PageRun>& runs) {
  for (std::int64_t row = first_row; row < first_row + rows;) {
    const std::int64_t slot = row % kPageTokens;
    const std::int64_t count = std::min(kPageTokens - slot, first_row + rows - row);
    runs.push_back({pages[static_cast<std::size_t>(row / kPageTokens)],
                    static_cast<std::int32_t>(slot), static_cast<std::int32_t>(count)});
    row += count;
  }
}

}  // namespace tributary
