#include "kernels/cuda/attend/token_tasks.h"

#include <cstdint>

#include "core/base/ceil_div.h"
#include "core/interface/visible_rows.h"

namespace tributary::cuda {
namespace {

/// Rows of the leaf that the task's only token will probably attend to.
std::int32_t expected_rows(const LeafTask& task, std::int64_t most) {
  const std::int64_t seen = visible_rows(task, 0);
  const std::int64_t length = task.query_position + 1;
  return static_cast<std::int32_t>(length <= most ? seen : ceil_div(seen * most, length));
}

}  // namespace

void split_into_tokens(const AttendArgs& args, std::span<const MergeOp> merges, TokenTasks& to) {
  to.tasks.clear();
  to.expected.clear();
  to.merges.clear();
  for (const LeafTask& task : args.tasks) {
    for (std::int32_t token = 0; token < task.tokens; ++token) {
      LeafTask one = task;
      one.tokens = 1;
      one.query_position += token;
      one.query += token;
      one.state += token;
      to.tasks.push_back(one);
      one.rows = expected_rows(one, args.selected.most);
      one.leaf_begin = 0;
      one.query_position = one.rows;
      to.expected.push_back(one);
    }
  }
  for (const MergeOp& op : merges) {
    for (std::int32_t token = 0; token < op.tokens; ++token) {
      to.merges.push_back({.dst = op.dst + token,
                           .left = op.left + token,
                           .right = op.right == kNoState ? kNoState : op.right + token,
                           .tokens = 1,
                           .level = op.level});
    }
  }
}

}  // namespace tributary::cuda
