#include "core/placement/exchange_load.h"

#include <algorithm>

#include "core/base/ceil_div.h"

namespace tributary {

ExchangeLoad::ExchangeLoad(int workers, int workers_per_node)
    : workers_per_node_(workers_per_node),
      peers_(at(workers)),
      nodes_(at(ceil_div(workers, workers_per_node))),
      pairs_(peers_.size() * peers_.size(), 0) {}

void ExchangeLoad::add_item(std::int32_t home, std::int64_t tokens) {
  peers_[at(home)].tokens += tokens;
  node_of(home).tokens += tokens;
  tokens_ += tokens;
}

void ExchangeLoad::add_pair(std::int32_t home, std::int32_t worker, std::int64_t tokens,
                            std::int64_t roots) {
  Peer& from = peers_[at(home)];
  Peer& to = peers_[at(worker)];
  const bool is_near = near(home, worker);
  from.queries_out += tokens;
  (is_near ? to.near_queries : to.far_queries) += tokens;
  (is_near ? from.near_states : from.far_states) += roots;
  to.states += roots;
  node_of(worker).states += roots;
  states_ += roots;

  std::int32_t& items = pairs_[at(home) * peers_.size() + at(worker)];
  const bool known = items > 0;
  items += tokens > 0 ? 1 : -1;
  if (known == (items > 0)) return;
  const int change = items > 0 ? 1 : -1;
  (is_near ? from.near_owners : from.far_owners) += change;
  (is_near ? to.near_homes : to.far_homes) += change;
}

/// Counts the messages of an all-to-all, which sends nothing to a rank for which it has nothing.
void ExchangeLoad::messages(const Peer& peer, Inbound& in) const {
  in.near_messages = std::max(peer.near_owners, peer.near_homes);
  in.far_messages = std::max(peer.far_owners, peer.far_homes);
}

Inbound ExchangeLoad::queries(std::int32_t worker, Exchange exchange,
                              const RoundPrices& prices) const {
  const Peer& peer = peers_[at(worker)];
  Inbound in;
  if (!travels()) return in;
  if (exchange == Exchange::kAllGather) {
    in = prices.gather_messages();
    in.near = node_of(worker).tokens - peer.tokens;
    in.far = tokens_ - node_of(worker).tokens;
    return in;
  }
  messages(peer, in);
  in.near = peer.near_queries;
  in.far = peer.far_queries;
  return in;
}

Inbound ExchangeLoad::states(std::int32_t worker, Exchange exchange,
                             const RoundPrices& prices) const {
  const Peer& peer = peers_[at(worker)];
  Inbound in;
  if (states_ == 0) return in;
  if (exchange == Exchange::kAllGather) {
    in = prices.gather_messages();
    in.near = node_of(worker).states - peer.states;
    in.far = states_ - node_of(worker).states;
    return in;
  }
  messages(peer, in);
  in.near = peer.near_states;
  in.far = peer.far_states;
  return in;
}

Exchange choose_exchange(const CostModelConfig& config, const Routing& routing, int workers) {
  const RoundPrices prices(config, workers);
  ExchangeLoad load(workers, config.workers_per_node);
  std::vector<std::int64_t> roots(static_cast<std::size_t>(workers), 0);
  for (const auto& item : routing.items) {
    if (!routing.exchanged(item)) continue;
    load.add_item(item.home, item.tokens);
    for (auto r = item.first_root; r < item.end_root; ++r) {
      const ItemRoot& root = routing.roots[static_cast<std::size_t>(r)];
      roots[static_cast<std::size_t>(root.worker)] += item.tokens;
    }
    for (const std::int32_t worker : routing.spread_of(item)) {
      std::int64_t& held = roots[static_cast<std::size_t>(worker)];
      if (worker != item.home) load.add_pair(item.home, worker, item.tokens, held);
      held = 0;
    }
  }
  const auto round_us = [&](Exchange exchange) {
    double queries = 0;
    double states = 0;
    for (std::int32_t w = 0; w < workers; ++w) {
      const double copied =
          exchange == Exchange::kAllToAll ? prices.gather_us(load.gathered(w)) : 0;
      queries = std::max(queries,
                         copied + prices.queries_us(load.queries(w, exchange, prices), exchange));
      states = std::max(states, prices.states_us(load.states(w, exchange, prices), exchange));
    }
    return queries + states;
  };
  return round_us(Exchange::kAllGather) < round_us(Exchange::kAllToAll) ? Exchange::kAllGather
                                                                        : Exchange::kAllToAll;
}

}  // namespace tributary
