// Calls on selected rows as launches and schedules take them.
#pragma once

#include <span>
#include <vector>

#include "core/interface/backend.h"

namespace tributary::cuda {

/// Every token has rows of its own, so each is a task of its own, and so are its merges.
struct TokenTasks {
  std::vector<LeafTask> tasks;
  /// The same for schedules: with as many rows as a token will probably attend to in the leaf,
  /// which sees them all. The host does not read the lists: rows are taken to be selected evenly.
  std::vector<LeafTask> expected;
  std::vector<MergeOp> merges;  // by level, as in MergeArgs
};

/// Fills `to`, whose memory is used again: a step calls it for each of its layers. The call has a
/// selection; `merges` are of the states of its tasks.
void split_into_tokens(const AttendArgs& args, std::span<const MergeOp> merges, TokenTasks& to);

}  // namespace tributary::cuda
