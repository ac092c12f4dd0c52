// The execution of an order's page copies, on every rank.
#pragma once

#include <cstdint>
#include <span>

#include "core/base/deadline.h"
#include "core/base/error.h"
#include "core/interface/backend.h"
#include "core/interface/clock.h"
#include "core/interface/communicator.h"
#include "core/sequencer/page_copy.h"

namespace tributary {

/// Executes the copies, at least one, on every rank, in one all-to-all of host memory. A failure of
/// this rank's own goes to `failure`, and the rank takes part in the exchange regardless, which is
/// left out where a rank has no memory for its pages; the result is not ok only if the communicator
/// failed. After a failure on any rank the target pages hold undefined rows. `took` is the time
/// since all ranks were there: they would have waited for each other in the round, too.
Status copy_pages(std::span<const PageCopy> copies, Backend& backend, Cache& cache,
                  Communicator& communicator, Deadline deadline, const Clock& clock,
                  Status& failure, Duration& took);

}  // namespace tributary
