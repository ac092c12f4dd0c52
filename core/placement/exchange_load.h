// The inbound traffic of each worker in the exchanges of a round, kept as sequences come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/index.h"
#include "core/cost/round_work.h"
#include "core/plan/plan.h"

namespace tributary {

/// All counts are integers, so removing what was added leaves no remainder. Counts are by link:
/// `near` is inside a node.
class ExchangeLoad {
 public:
  /// Both are at least 1.
  ExchangeLoad(int workers, int workers_per_node);

  /// An item of `tokens` has its home at `home` and leaves elsewhere. A negative number removes it.
  void add_item(std::int32_t home, std::int64_t tokens);
  /// The item's queries go to another worker, `worker`, once for all its leaves there, and these
  /// send `roots` subtree roots back. Negative numbers remove the pair.
  void add_pair(std::int32_t home, std::int32_t worker, std::int64_t tokens, std::int64_t roots);

  [[nodiscard]] bool near(std::int32_t a, std::int32_t b) const noexcept {
    return a / workers_per_node_ == b / workers_per_node_;
  }
  /// Whether no item of `home` has leaves on `worker`.
  [[nodiscard]] bool apart(std::int32_t home, std::int32_t worker) const noexcept {
    return pairs_[at(home) * peers_.size() + at(worker)] == 0;
  }
  /// Whether any token travels.
  [[nodiscard]] bool travels() const noexcept { return tokens_ > 0; }
  [[nodiscard]] Inbound queries(std::int32_t worker, Exchange exchange,
                                const RoundPrices& prices) const;
  [[nodiscard]] Inbound states(std::int32_t worker, Exchange exchange,
                               const RoundPrices& prices) const;
  /// The token records that `home` copies together for an all-to-all.
  [[nodiscard]] std::int64_t gathered(std::int32_t home) const noexcept {
    return peers_[at(home)].queries_out;
  }

 private:
  struct Peer {
    std::int64_t queries_out = 0;                    // as a home, to others
    std::int64_t near_queries = 0, far_queries = 0;  // in, all-to-all
    std::int64_t near_states = 0, far_states = 0;    // likewise
    std::int64_t tokens = 0, states = 0;             // that it contributes to an all-gather
    // The workers that this one sends queries to, and those that it gets queries from.
    std::int32_t near_owners = 0, far_owners = 0, near_homes = 0, far_homes = 0;
  };
  struct Node {
    std::int64_t tokens = 0, states = 0;
  };

  [[nodiscard]] const Node& node_of(std::int32_t worker) const {
    return nodes_[at(worker / workers_per_node_)];
  }
  [[nodiscard]] Node& node_of(std::int32_t worker) {
    return nodes_[at(worker / workers_per_node_)];
  }
  void messages(const Peer& peer, Inbound& in) const;

  int workers_per_node_;
  std::vector<Peer> peers_;
  std::vector<Node> nodes_;
  std::vector<std::int32_t> pairs_;  // [home][worker]: items
  std::int64_t tokens_ = 0, states_ = 0;
};

/// Returns kAllGather or kAllToAll, whichever makes the two exchanges of a round shorter by
/// prediction. Equal arguments give equal answers, so every worker chooses the same. Throws
/// kInvalidArgument as RoundPrices does.
[[nodiscard]] Exchange choose_exchange(const CostModelConfig& config, const Routing& routing,
                                       int workers);

}  // namespace tributary
