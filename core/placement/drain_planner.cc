#include "core/placement/drain_planner.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/cache/leaves.h"
#include "core/placement/trial_moves.h"

namespace tributary {
namespace {

constexpr std::size_t kMostMoves = 32;  // of a plan: some hundred predictions
constexpr std::size_t kLeastBusy = 3;   // workers that are tried beside the sequence's own

class DrainPlanner {
 public:
  DrainPlanner(std::int32_t worker, const PoolLoad& load, const RoundPrices& prices)
      : worker_(worker), prices_(prices), trial_(load, prices.config().leaf_tokens) {}

  void take_off(const Sequence& s) {
    // One move of a sequence is under way at a time, and the next finds it moved.
    const auto take_run = [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
      if (owner == worker_ && !found_of(s)) {
        (void)place(s, static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end));
      }
    };
    const std::int64_t full = s.length / prices_.config().leaf_tokens;
    for_each_owner_run(s, full, take_run);
    if (full == std::ssize(s.leaves)) return;
    const Leaf& newest = s.leaves[static_cast<std::size_t>(full)];
    if (!newest.pages.empty()) take_run(newest.owner, full, full + 1);
  }

  [[nodiscard]] bool full() const { return plan_.size() >= kMostMoves; }
  [[nodiscard]] MovePlan plan() && { return std::move(plan_); }

 private:
  [[nodiscard]] bool found_of(const Sequence& s) const {
    return !plan_.empty() && plan_.back().id == s.id;
  }

  bool place(const Sequence& s, std::int32_t begin, std::int32_t end) {
    std::optional<LeafMove> best;
    double least = std::numeric_limits<double>::infinity();
    for (const std::int32_t to : targets(s, begin, end)) {
      const LeafMove move{.id = s.id, .first_leaf = begin, .end_leaf = end, .to = to};
      if (!trial_.fits(s, {&move, 1})) continue;
      trial_.apply(s, {&move, 1});
      const double us = trial_.load().step_us(prices_);
      trial_.undo();
      if (us >= least) continue;
      least = us;
      best = move;
    }
    if (best) {
      trial_.apply(s, {&*best, 1});
      plan_.push_back(*best);
      return true;
    }
    if (end - begin == 1) return false;
    const std::int32_t middle = begin + (end - begin) / 2;
    return place(s, begin, middle) || place(s, middle, end);
  }

  [[nodiscard]] std::vector<std::int32_t> targets(const Sequence& s, std::int32_t begin,
                                                  std::int32_t end) const {
    std::vector<std::int32_t> found;
    const auto add = [&](std::int32_t to) {
      if (to != worker_ && std::ranges::find(found, to) == found.end()) found.push_back(to);
    };
    add(s.home);
    if (begin > 0) add(trial_.owner(s, begin - 1));
    if (end < ceil_div(s.length, prices_.config().leaf_tokens)) add(trial_.owner(s, end));
    const PoolLoad& load = trial_.load();
    std::vector<std::int32_t> order(load.workers().size());
    std::iota(order.begin(), order.end(), 0);
    // Those with the pages: a busy one is better than none.
    std::erase_if(order, [&](std::int32_t w) {
      const LeafMove move{.id = s.id, .first_leaf = begin, .end_leaf = end, .to = w};
      return !trial_.fits(s, {&move, 1});
    });
    std::ranges::stable_sort(order, {}, [&](std::int32_t w) { return load.attend_us(w, prices_); });
    for (std::size_t i = 0; i < std::min(order.size(), kLeastBusy); ++i) add(order[i]);
    return found;
  }

  std::int32_t worker_;
  const RoundPrices& prices_;
  TrialMoves trial_;
  MovePlan plan_;
};

}  // namespace

MovePlan plan_drain(std::int32_t worker, std::span<const Sequence* const> movable,
                    const PoolLoad& load, const RoundPrices& prices) {
  DrainPlanner planner(worker, load, prices);
  for (const Sequence* s : movable) {
    if (planner.full()) break;
    planner.take_off(*s);
  }
  return std::move(planner).plan();
}

}  // namespace tributary
