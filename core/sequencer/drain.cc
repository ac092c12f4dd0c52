#include "core/sequencer/drain.h"

#include <algorithm>
#include <utility>

namespace tributary {
namespace {

constexpr int kMostSequences = 256;  // that change in one order

}  // namespace

std::int32_t beside_drained(const PoolLedger& ledger, std::int32_t reserved, std::int32_t home,
                            std::int64_t pages) {
  const auto available = [&](std::int32_t w) {
    return ledger.load().workers()[static_cast<std::size_t>(w)].available_pages;
  };
  if (available(home) >= pages) return home;
  std::int32_t best = reserved;
  for (std::int32_t w = 0; std::cmp_less(w, ledger.pools().size()); ++w) {
    if (available(w) >= pages && (best == reserved || available(w) > available(best))) best = w;
  }
  return best;
}

std::int32_t new_home(const PoolLedger& ledger, const Sequence& s) {
  const auto newest = static_cast<std::size_t>(std::max<std::int64_t>(s.length - 1, 0) /
                                               ledger.table().leaf_tokens());
  const std::int32_t owner = s.leaves[newest].owner;
  if (owner != kNoWorker && !ledger.draining(owner)) return owner;
  const auto homes = [&](std::int32_t w) {
    return ledger.load().workers()[static_cast<std::size_t>(w)].homes;
  };
  std::int32_t best = s.home;
  for (std::int32_t w = 0; std::cmp_less(w, ledger.pools().size()); ++w) {
    if (ledger.draining(w)) continue;
    if (best == s.home || homes(w) < homes(best)) best = w;
  }
  return best;
}

bool Drain::give_away(const std::function<bool(SequenceId)>& is_busy) {
  const auto holds = [&](std::int32_t w) {
    const auto i = static_cast<std::size_t>(w);
    return ledger_.draining(w) &&
           (ledger_.load().workers()[i].homes > 0 || ledger_.pools()[i].reserved() > 0);
  };
  bool any = false;
  for (std::int32_t w = 0; std::cmp_less(w, ledger_.pools().size()); ++w) any = any || holds(w);
  if (!any) return false;
  int changed = 0;
  for (const auto& [id, sequence] : ledger_.running()) {
    if (give_away(ledger_.table().at(id), is_busy) && ++changed == kMostSequences) break;
  }
  return changed > 0;
}

bool Drain::give_away(const Sequence& s, const std::function<bool(SequenceId)>& is_busy) {
  bool changed = false;
  for (std::size_t i = 0; i < s.leaves.size(); ++i) {
    const std::int32_t owner = s.leaves[i].owner;
    if (!s.leaves[i].pages.empty() || owner == kNoWorker || !ledger_.draining(owner)) continue;
    const std::int64_t pages = ledger_.leaf_pages(s, i, s.limit_tokens);
    const std::int32_t to = beside_drained(ledger_, owner, s.home, pages);
    if (to == owner) continue;
    ledger_.pages().reserve(to, pages);
    ledger_.pages().unreserve(owner, pages);
    ledger_.decide(ExtendOp{s.id, static_cast<std::int32_t>(i), to, {}});
    changed = true;
  }
  if (!ledger_.draining(s.home) || is_busy(s.id)) return changed;
  const std::int32_t home = new_home(ledger_, s);
  if (home == s.home) return changed;
  ledger_.decide(HomeOp{s.id, home});
  return true;
}

}  // namespace tributary
