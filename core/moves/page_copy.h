// The unit in which leaves move between workers: the rows of one layer of one page.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/backend.h"
#include "core/interface/communicator.h"

namespace tributary {

/// The kPageTokens rows of one layer of a page of worker `from` are copied to a page of worker
/// `to`.
struct PageCopy {
  std::int32_t from = 0;
  std::int32_t from_page = 0;
  std::int32_t to = 0;
  std::int32_t to_page = 0;
  std::int32_t layer = 0;
  friend bool operator==(const PageCopy&, const PageCopy&) = default;
};

/// Executes the copies on every rank, in one all-to-all of host memory; nothing without copies.
/// Like RoundExecutor::run: a failure of this rank's own goes to `failure`, and the rank takes part
/// in the exchange regardless; the result is not ok only if the communicator failed. After a
/// failure on any rank the target pages hold undefined rows.
Status copy_pages(std::span<const PageCopy> copies, Backend& backend, Cache& cache,
                  Communicator& communicator, Deadline deadline, Status& failure);

}  // namespace tributary
