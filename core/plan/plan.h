// The plan of a round: the leaves that each worker computes, the data that travels, the order of
// merges. Data only: built once per batch from the sequence table, valid for every layer.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/base/limits.h"
#include "core/cache/sequence_table.h"
#include "core/interface/calls.h"
#include "core/plan/merge_tree.h"
#include "core/plan/step_item.h"

namespace tributary {

/// The way in which queries and partial states travel. `all_gather`: every worker receives all of
/// them. `all_to_all`: each worker receives its own. `auto`: the smaller predicted time, per round.
enum class Exchange { kAuto, kAllGather, kAllToAll };

/// `auto`, `all-gather`, `all-to-all`; throws kInvalidArgument with the list.
[[nodiscard]] Exchange parse_exchange(std::string_view name);
[[nodiscard]] std::string_view exchange_name(Exchange exchange) noexcept;

/// A subtree root of one item, and the worker that computes it.
struct ItemRoot {
  std::int32_t item = 0;
  std::int32_t worker = 0;
  TreeNode node;
};

/// The part of a round's plan that every worker knows.
struct Routing {
  struct Item {
    const Sequence* sequence = nullptr;
    std::int32_t tokens = 0;
    std::int32_t home = 0;
    std::int64_t rows = 0;        // keys of the last new token: length + tokens
    std::int32_t first_root = 0;  // roots[first_root .. end_root), in leaf order
    std::int32_t end_root = 0;
    std::int32_t first_worker = 0;  // spread[first_worker .. end_worker), ascending
    std::int32_t end_worker = 0;
  };
  std::vector<Item> items;
  std::vector<ItemRoot> roots;
  std::vector<std::int32_t> spread;
  std::vector<std::int64_t> worker_rows;  // attention work of each worker: rows x new tokens

  [[nodiscard]] std::span<const std::int32_t> spread_of(const Item& item) const {
    return {spread.data() + item.first_worker,
            static_cast<std::size_t>(item.end_worker - item.first_worker)};
  }
  /// True unless the home alone holds all of the sequence.
  [[nodiscard]] bool exchanged(const Item& item) const {
    const auto workers = spread_of(item);
    return workers.size() != 1 || workers.front() != item.home;
  }
};

/// Replaces `routing` by that of `batch`, whatever its layers. Throws kNotFound, kStaleEpoch,
/// kInvalidArgument (another length than the sequence has, tokens outside 1 .. kMaxStepTokens, a
/// limit exceeded, a leaf without pages for its rows, or on a worker outside 0 .. workers - 1);
/// `routing` must not be used then. The table must outlive it.
void build_routing(const SequenceTable& table, std::span<const StepItem> batch, int workers,
                   Routing& routing);

/// Records that travel in a round, by exchange. kAuto weighs them, and tests compare the bytes with
/// them.
struct ExchangeVolume {
  std::int64_t token_records = 0;  // sent by all workers to others
  std::int64_t state_records = 0;
};
[[nodiscard]] ExchangeVolume exchange_volume(const Routing& routing, int workers,
                                             Exchange exchange);

/// A sequence whose home is this worker.
struct HomedItem {
  std::int32_t item = 0;
  SequenceId id = 0;
  std::int64_t tag = 0;
  std::int64_t position = 0;  // of the first new token
  std::int32_t tokens = 0;
  std::int64_t token_record = 0;  // where the first token's query and row go
  std::int64_t state = 0;         // where the first token's merged state will be
};

/// One worker's part of a round.
///
/// Token records (query, then new latent row, of one token) live in one arena: first those of the
/// sequences homed here, exchanged ones in front, then the received ones. State records live in
/// another: [local | send | receive | out]; see StateShape for a record.
struct RankPlan {
  Exchange exchange = Exchange::kAllToAll;
  std::vector<HomedItem> homed;

  // Queries and new rows, in token records. Counts are per rank.
  std::int64_t local_tokens = 0;
  std::int64_t received_tokens = 0;
  bool tokens_travel = false;                  // the same on every rank
  std::vector<std::int64_t> token_send_index;  // all-to-all: local records, grouped by receiver
  std::vector<std::int64_t> token_send_counts, token_recv_counts;

  std::vector<AppendTask> appends;
  std::vector<LeafTask> tasks;
  std::vector<std::int32_t> block_table;
  MergeSchedule local_merges;

  // Subtree roots, in state records.
  std::int64_t local_states = 0;
  std::int64_t sent_states = 0;
  std::int64_t received_states = 0;
  std::int64_t out_states = 0;
  bool states_travel = false;  // the same on every rank
  std::vector<std::int64_t> state_send_counts, state_recv_counts;
  MergeSchedule home_merges;

  [[nodiscard]] std::int64_t send_begin() const noexcept { return local_states; }
  [[nodiscard]] std::int64_t recv_begin() const noexcept { return local_states + sent_states; }
  [[nodiscard]] std::int64_t out_begin() const noexcept {
    return local_states + sent_states + received_states;
  }
  [[nodiscard]] std::int64_t total_states() const noexcept { return out_begin() + out_states; }
  [[nodiscard]] std::int64_t total_tokens() const noexcept {
    return local_tokens + received_tokens;
  }
};

/// Builds the part of `rank`; `exchange` is kAllGather or kAllToAll. Reuses the plan's memory.
class PlanBuilder {
 public:
  PlanBuilder(int workers, int rank, int leaf_tokens);
  void build(const Routing& routing, Exchange exchange, RankPlan& plan);

 private:
  void route_tokens(const Routing& routing, RankPlan& plan);
  void route_states(const Routing& routing, RankPlan& plan);
  void plan_appends(const Routing& routing, RankPlan& plan) const;
  void plan_leaves(const Routing& routing, RankPlan& plan);
  void plan_home_merges(const Routing& routing, RankPlan& plan);

  int workers_;
  int rank_;
  int leaf_tokens_;
  std::vector<std::int64_t> token_location_;  // per item: record of its first token, or -1
  std::vector<std::int64_t> root_location_;   // per root: its state record here, or -1
  std::vector<NodeState> nodes_;
};

}  // namespace tributary
