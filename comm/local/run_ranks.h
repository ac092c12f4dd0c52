// Runs one function on every rank of a fresh group of threads.
#pragma once

#include <functional>

#include "core/interface/communicator.h"

namespace tributary {

/// Calls `body` on `ranks` new threads, each with its communicator, and joins them. If one throws,
/// the group is poisoned so that the others end, and the first exception is rethrown here. Throws
/// kInvalidArgument unless 1 <= ranks <= ThreadGroup::kMaxRanks.
void run_ranks(int ranks, const std::function<void(Communicator&)>& body);

}  // namespace tributary
