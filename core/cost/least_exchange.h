// The least that a round of a given placement can exchange: the yardstick for plans.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/model/attention_shape.h"
#include "core/plan/plan.h"

namespace tributary {

/// Bytes of one layer, all workers. Each new token sends a query to each worker of its sequence's
/// spread except its home, once, and each subtree root that is not at the home sends a state.
/// Another placement could have fewer roots; no exchange of the same placement needs fewer bytes.
[[nodiscard]] inline double least_exchange_bytes(const Routing& routing,
                                                 const AttentionShape& shape) {
  std::int64_t queries = 0;
  std::int64_t states = 0;
  for (const Routing::Item& item : routing.items) {
    const auto spread = routing.spread_of(item);
    queries += item.tokens * (std::ssize(spread) - std::ranges::count(spread, item.home));
    for (auto r = item.first_root; r < item.end_root; ++r) {
      const bool away = routing.roots[static_cast<std::size_t>(r)].worker != item.home;
      states += away ? item.tokens : 0;
    }
  }
  return static_cast<double>(queries) * static_cast<double>(shape.token_record_bytes()) +
         static_cast<double>(states) * static_cast<double>(shape.state_shape().record_bytes());
}

}  // namespace tributary
