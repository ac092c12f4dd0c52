// The cost of each part of a step on one worker, as a few constants per unit of work.
#pragma once

namespace tributary {

/// Times in nanoseconds, `_us` in microseconds. All are for one worker while the others of its
/// machine are busy too. `tributary bench` measures them.
struct MachineCosts {
  // Attention over cached rows.
  double attend_us = 0;        // a call, whatever its size
  double attend_task_us = 0;   // a leaf of a sequence
  double attend_byte_ns = 0;   // a byte of a cached row: reading and unpacking it
  double attend_gflop_us = 0;  // 10^9 multiplications and additions
  /// Share of the shorter of reading and arithmetic that runs under the longer, 0 .. 1.
  /// Measurements on a processor are fitted with 0.
  double attend_overlap = 0;
  // Merging partial states.
  double merge_us = 0;       // a level of a tree
  double merge_byte_ns = 0;  // a byte of a state record
  // Records of queries and new rows: written by the home, gathered before an all-to-all.
  double record_us = 0;  // a token
  double record_byte_ns = 0;
  // Projections, where the pool does them: y = W x.
  double weight_byte_ns = 0;  // a byte of W, read once a call
  double weight_gflop_us = 0;
  // Exchange between workers of a node. A message is one of the log2(n) of an all-gather of n
  // workers, or of the n - 1 of an all-to-all. A byte is one that a worker receives from others.
  double all_gather_message_us = 0;
  double all_gather_byte_ns = 0;
  double all_to_all_message_us = 0;
  double all_to_all_byte_ns = 0;
  // The same between nodes, for one worker with its share of the node's network.
  double network_message_us = 0;
  double network_byte_ns = 0;
  // A worker that waits longer than `_free_us` for the slowest one is late for the next exchange,
  // because it sleeps between polls: by this share of the excess, at most `_most_us`.
  double wait_free_us = 0;
  double wait_late_share = 0;
  double wait_late_most_us = 0;
  // The rest.
  double plan_item_us = 0;  // routing and plan of one sequence, once a step
  double round_us = 0;      // a layer: agreement on its end, appending new rows
  double step_us = 0;       // a step: its order
};

/// Calls `visit("name", costs.name)` for each constant; the one list of them.
template <typename Costs, typename Visit>
void for_each_cost(Costs& costs, Visit&& visit) {
  visit("attend_us", costs.attend_us);
  visit("attend_task_us", costs.attend_task_us);
  visit("attend_byte_ns", costs.attend_byte_ns);
  visit("attend_gflop_us", costs.attend_gflop_us);
  visit("attend_overlap", costs.attend_overlap);
  visit("merge_us", costs.merge_us);
  visit("merge_byte_ns", costs.merge_byte_ns);
  visit("record_us", costs.record_us);
  visit("record_byte_ns", costs.record_byte_ns);
  visit("weight_byte_ns", costs.weight_byte_ns);
  visit("weight_gflop_us", costs.weight_gflop_us);
  visit("all_gather_message_us", costs.all_gather_message_us);
  visit("all_gather_byte_ns", costs.all_gather_byte_ns);
  visit("all_to_all_message_us", costs.all_to_all_message_us);
  visit("all_to_all_byte_ns", costs.all_to_all_byte_ns);
  visit("network_message_us", costs.network_message_us);
  visit("network_byte_ns", costs.network_byte_ns);
  visit("wait_free_us", costs.wait_free_us);
  visit("wait_late_share", costs.wait_late_share);
  visit("wait_late_most_us", costs.wait_late_most_us);
  visit("plan_item_us", costs.plan_item_us);
  visit("round_us", costs.round_us);
  visit("step_us", costs.step_us);
}

}  // namespace tributary
