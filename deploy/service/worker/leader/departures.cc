#include "deploy/service/worker/leader/departures.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

namespace tributary {
namespace {

/// Moves end between orders; one that has left a worker empty is seen this soon.
constexpr std::chrono::milliseconds kEmptyLook{50};

bool is_empty(const PoolLedger& ledger, std::size_t rank) {
  const PagePool& pages = ledger.pools()[rank];
  return pages.used() == 0 && pages.reserved() == 0 && ledger.load().workers()[rank].homes == 0;
}

}  // namespace

bool Departures::ask(int rank, Time now) {
  State& state = states_[static_cast<std::size_t>(rank)];
  if (state.asked || state.gone) return false;
  state = {.asked = true, .until = now + patience_};
  return true;
}

std::vector<int> Departures::due(const PoolLedger& ledger, Time now) const {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < states_.size(); ++rank) {
    const State& state = states_[rank];
    const bool may = state.asked && (now >= state.until || is_empty(ledger, rank));
    if (may) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

Time Departures::next_event(Time now) const {
  const bool any = std::ranges::any_of(states_, &State::asked);
  return any ? now + kEmptyLook : Time::max();
}

}  // namespace tributary
