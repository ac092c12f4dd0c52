#include "core/placement/move_planner.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/index.h"
#include "core/cache/leaves.h"
#include "core/placement/spread_search.h"
#include "core/placement/trial_moves.h"

namespace tributary {
namespace {

constexpr std::size_t kMostJoined = 128;  // sequences
constexpr int kMostLinks = 8;
constexpr std::size_t kMostGivers = 4;  // sequences of which a link tries leaves

/// The best beginning of a chain of moves.
class Chain {
 public:
  Chain(const MovePlannerConfig& config, double step_us) : config_(config), step_us_(step_us) {}

  /// `lasting`: the share of the gain that time does not bring by itself.
  void add(const Sequence& s, std::span<const LeafMove> moves, double copy_us, bool cuts,
           double lasting) {
    moves_.insert(moves_.end(), moves.begin(), moves.end());
    copy_us_ += copy_us;
    steps_ += static_cast<double>(s.limit_tokens - s.length) / 2;
    ++sequences_;
    cuts_ = cuts_ || cuts;
    if (cuts) lasting_ = std::min(lasting_, lasting);
  }
  /// A step of all after the moves so far.
  void look(double step_us) {
    const double gain = (step_us_ - step_us) * lasting_;
    const double total = gain * steps_ / sequences_;
    const double least = cuts_ ? config_.least_cut_gain : config_.least_gain;
    if (gain < least * step_us_ || total < config_.hysteresis * copy_us_) return;
    if (total - copy_us_ <= net_us_) return;
    net_us_ = total - copy_us_;
    best_ = moves_.size();
  }

  [[nodiscard]] double net_us() const noexcept { return net_us_; }
  [[nodiscard]] MovePlan plan() && {
    moves_.resize(best_);
    return std::move(moves_);
  }

 private:
  const MovePlannerConfig& config_;
  double step_us_;
  MovePlan moves_;
  double copy_us_ = 0;
  double steps_ = 0;  // sum over the moved sequences
  double sequences_ = 0;
  bool cuts_ = false;
  double lasting_ = 1;
  double net_us_ = 0;
  std::size_t best_ = 0;
};

class Planner {
 public:
  Planner(const MovePlannerConfig& config, std::span<const Sequence* const> movable,
          const PoolLoad& load, const RoundPrices& prices)
      : config_(config),
        movable_(movable),
        load_(load),
        prices_(prices),
        step_us_(load.step_us(prices)) {}

  [[nodiscard]] MovePlan plan() {
    std::vector<Chain> chains;
    if (find_joins()) {
      chains.push_back(join(false));
      chains.push_back(join(true));
    }
    if (uneven(load_)) {
      chains.push_back(level());
      spread_longest(chains);
    }
    if (chains.empty()) return {};
    return std::move(*std::ranges::max_element(chains, {}, &Chain::net_us)).plan();
  }

 private:
  struct Join {
    const Sequence* sequence;
    double copy_us;
    std::vector<LeafMove> moves;
  };

  [[nodiscard]] int leaf_tokens() const { return prices_.config().leaf_tokens; }

  [[nodiscard]] double copy_us(const LeafMove& move, std::int32_t from) const {
    const CostModelConfig& c = prices_.config();
    const double bytes = static_cast<double>(move.end_leaf - move.first_leaf) * leaf_tokens() *
                         static_cast<double>(c.attention.row_bytes()) * c.layers;
    const bool near = load_.exchange().near(from, move.to);
    return bytes * (near ? c.costs.all_to_all_byte_ns : c.costs.network_byte_ns) * 1e-3;
  }

  /// Sequences that can become whole at their homes, shortest copies first.
  bool find_joins() {
    for (const Sequence* s : movable_) {
      const std::int64_t full = s->length / leaf_tokens();
      const std::int64_t leaves = ceil_div(s->length, leaf_tokens());
      if (leaves > full && s->leaves[static_cast<std::size_t>(full)].owner != s->home) continue;
      Join found{s, 0, {}};
      for_each_owner_run(*s, full, [&](std::int32_t owner, std::int64_t begin, std::int64_t end) {
        if (owner == s->home) return;
        const LeafMove& move =
            found.moves.emplace_back(LeafMove{.id = s->id,
                                              .first_leaf = static_cast<std::int32_t>(begin),
                                              .end_leaf = static_cast<std::int32_t>(end),
                                              .to = s->home});
        found.copy_us += copy_us(move, owner);
      });
      if (!found.moves.empty()) joins_.push_back(std::move(found));
    }
    std::ranges::stable_sort(joins_, {}, &Join::copy_us);
    if (joins_.size() > kMostJoined) joins_.resize(kMostJoined);
    return !joins_.empty();
  }

  /// `careful`: without those that make the step longer, which may end an exchange all the same.
  [[nodiscard]] Chain join(bool careful) const {
    Chain chain(config_, step_us_);
    TrialMoves trial(load_, leaf_tokens());
    double step_us = step_us_;
    for (const Join& join : joins_) {
      if (!trial.fits(*join.sequence, join.moves)) continue;
      trial.apply(*join.sequence, join.moves);
      const double joined_us = trial.load().step_us(prices_);
      if (careful && joined_us > step_us) {
        trial.undo();
        continue;
      }
      step_us = joined_us;
      chain.add(*join.sequence, join.moves, join.copy_us, false, 1);
      chain.look(step_us);
    }
    return chain;
  }

  /// As at admission: smaller gaps are filled by what comes next.
  [[nodiscard]] bool uneven(const PoolLoad& load) const {
    double most = 0;
    double sum = 0;
    for (std::int32_t w = 0; std::cmp_less(w, load.workers().size()); ++w) {
      const double us = load.attend_us(w, prices_);
      most = std::max(most, us);
      sum += us;
    }
    return gap_pays(most, sum, load.workers().size());
  }

  [[nodiscard]] Chain level() const {
    Chain chain(config_, step_us_);
    TrialMoves trial(load_, leaf_tokens());
    for (int link = 0; link < kMostLinks && uneven(trial.load()); ++link) {
      const auto found = best_gift(trial);
      if (!found) break;
      const auto before = trial.runs(*found->sequence);
      const std::int32_t from = trial.owner(*found->sequence, found->move.first_leaf);
      const double lasting = lasting_share(trial, *found->sequence, from);
      trial.apply(*found->sequence, {&found->move, 1});
      const bool cuts = trial.runs(*found->sequence) > before;
      chain.add(*found->sequence, {&found->move, 1}, copy_us(found->move, from), cuts, lasting);
      chain.look(trial.load().step_us(prices_));
    }
    return chain;
  }

  /// The part of the excess of `from` over the mean that lasts: as at admission, neighbours of the
  /// sequence that would be cut end and are not replaced.
  [[nodiscard]] double lasting_share(const TrialMoves& trial, const Sequence& s,
                                     std::int32_t from) const {
    const PoolLoad& load = trial.load();
    const WorkerLoad& worker = load.workers()[at(from)];
    double sum = 0;
    for (std::int32_t w = 0; std::cmp_less(w, load.workers().size()); ++w) {
      sum += load.attend_us(w, prices_);
    }
    const double us = load.attend_us(from, prices_);
    const double excess = us - sum / static_cast<double>(load.workers().size());
    if (excess <= 0) return 1;
    std::int64_t own = 0;
    const AttendedLength length{s.length, ceil_div(s.length, leaf_tokens())};
    for (std::int64_t l = 0; l < length.leaves; ++l) {
      if (trial.owner(s, l) != from) continue;
      own += length.rows_of(1, std::min<std::int64_t>(leaf_tokens(), s.length - l * leaf_tokens()),
                            prices_.config().attention.topk);
    }
    const double others = us * static_cast<double>(worker.rows - own) /
                          static_cast<double>(std::max<std::int64_t>(1, worker.rows));
    const std::int64_t count = worker.homes - (s.home == from ? 1 : 0);
    return lasting_excess_us(excess, others, count) / excess;
  }

  /// The longest sequence over all workers of its home's node, and of the pool: what one leaf after
  /// the other does not reach, since on the way there a step is hardly shorter.
  void spread_longest(std::vector<Chain>& chains) const {
    const Sequence& s =
        **std::ranges::max_element(movable_, {}, [](const Sequence* one) { return one->length; });
    const auto workers = static_cast<std::int32_t>(load_.workers().size());
    const std::int32_t per_node = std::min(prices_.config().workers_per_node, workers);
    const std::int32_t node = s.home / per_node * per_node;
    chains.push_back(spread(s, node, std::min(node + per_node, workers)));
    if (per_node < workers) chains.push_back(spread(s, 0, workers));
  }

  /// Even runs on workers [first, end), the last one where the newest leaf is.
  [[nodiscard]] Chain spread(const Sequence& s, std::int32_t first, std::int32_t end) const {
    Chain chain(config_, step_us_);
    const std::int64_t full = s.length / leaf_tokens();
    if (full < end - first) return chain;  // an empty sequence has no newest leaf either
    const std::int64_t held = ceil_div(s.length, leaf_tokens());
    const std::int32_t newest = s.leaves[at(held - 1)].owner;
    if (newest < first || newest >= end) return chain;
    std::vector<LeafMove> moves;
    double copies_us = 0;
    for (std::int64_t leaf = 0; leaf < full; ++leaf) {
      // Backwards from the newest leaf's worker, around.
      const auto back = static_cast<std::int32_t>((full - 1 - leaf) * (end - first) / full);
      const std::int32_t to = first + (newest - first + (end - first) - back) % (end - first);
      const std::int32_t from = s.leaves[at(leaf)].owner;
      if (from == to) continue;
      const auto number = static_cast<std::int32_t>(leaf);
      const LeafMove move{.id = s.id, .first_leaf = number, .end_leaf = number + 1, .to = to};
      copies_us += copy_us(move, from);
      const bool joins = !moves.empty() && moves.back().end_leaf == number &&
                         moves.back().to == to && s.leaves[at(leaf - 1)].owner == from;
      if (joins) {
        ++moves.back().end_leaf;
      } else {
        moves.push_back(move);
      }
    }
    TrialMoves trial(load_, leaf_tokens());
    const bool fit = std::ranges::all_of(moves, [&](const LeafMove& move) {
      return trial.fits(s, {&move, 1});
    });
    if (moves.empty() || !fit) return chain;
    std::int32_t busiest = 0;
    for (std::int32_t w = 1; w < static_cast<std::int32_t>(load_.workers().size()); ++w) {
      if (load_.attend_us(w, prices_) > load_.attend_us(busiest, prices_)) busiest = w;
    }
    const double lasting = lasting_share(trial, s, busiest);
    trial.apply(s, moves);
    chain.add(s, moves, copies_us, true, lasting);
    chain.look(trial.load().step_us(prices_));
    return chain;
  }

  struct Gift {
    const Sequence* sequence;
    LeafMove move;
  };

  /// The move off the busiest worker after which a step is shortest, and the busier of its two
  /// workers least busy: where others are as busy, that is what makes progress.
  [[nodiscard]] std::optional<Gift> best_gift(TrialMoves& trial) const {
    const PoolLoad& load = trial.load();
    std::vector<std::int32_t> order(load.workers().size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::int32_t w) { return load.attend_us(w, prices_); });
    const std::int32_t from = order.back();
    std::optional<Gift> best;
    std::pair least(load.step_us(prices_), load.attend_us(from, prices_));
    for (const Sequence* s : givers(trial, from)) {
      for (const LeafMove& move : gifts(trial, *s, from, order)) {
        if (!trial.fits(*s, {&move, 1})) continue;
        trial.apply(*s, {&move, 1});
        const std::pair key(load.step_us(prices_), std::max(load.attend_us(from, prices_),
                                                            load.attend_us(move.to, prices_)));
        trial.undo();
        if (key >= least) continue;
        least = key;
        best = Gift{s, move};
      }
    }
    return best;
  }

  /// Returns those with the most full leaves on `from`, which relieve it with the fewest roots.
  [[nodiscard]] std::vector<const Sequence*> givers(const TrialMoves& trial,
                                                    std::int32_t from) const {
    std::vector<std::pair<std::int64_t, const Sequence*>> all;
    for (const Sequence* s : movable_) {
      std::int64_t held = 0;
      for (std::int32_t l = 0; l < s->length / leaf_tokens(); ++l) {
        held += trial.owner(*s, l) == from ? 1 : 0;
      }
      if (held > 0) all.emplace_back(-held, s);
    }
    std::ranges::sort(all, {},
                      [](const auto& one) { return std::pair(one.first, one.second->id); });
    std::vector<const Sequence*> most;
    for (std::size_t i = 0; i < std::min(all.size(), kMostGivers); ++i)
      most.push_back(all[i].second);
    return most;
  }

  /// The longest run of a sequence on `from`, and what of it would make the two workers even, in
  /// aligned blocks at its end and at its beginning.
  [[nodiscard]] std::vector<LeafMove> gifts(const TrialMoves& trial, const Sequence& s,
                                            std::int32_t from,
                                            std::span<const std::int32_t> order) const {
    const auto full = static_cast<std::int32_t>(s.length / leaf_tokens());
    std::int32_t begin = 0;
    std::int32_t end = 0;
    for (std::int32_t first = 0; first < full;) {
      std::int32_t last = first + 1;
      while (last < full && trial.owner(s, last) == trial.owner(s, first)) ++last;
      if (trial.owner(s, first) == from && last - first > end - begin) {
        begin = first;
        end = last;
      }
      first = last;
    }
    std::vector<std::int32_t> targets;
    const auto target = [&](std::int32_t w) {
      if (w != from && std::ranges::find(targets, w) == targets.end()) targets.push_back(w);
    };
    target(s.home);
    if (begin > 0) target(trial.owner(s, begin - 1));
    if (end < ceil_div(s.length, leaf_tokens())) target(trial.owner(s, end));
    const auto near = std::ranges::find_if(
        order, [&](std::int32_t w) { return load_.exchange().near(w, s.home); });
    if (near != order.end()) target(*near);
    target(order.front());

    std::vector<LeafMove> moves;
    for (const std::int32_t to : targets) {
      const PoolLoad& load = trial.load();
      const std::int64_t half = (load.workers()[at(from)].tokens - load.workers()[at(to)].tokens) /
                                (2 * std::int64_t{leaf_tokens()});
      if (half < 1) continue;
      const auto block = static_cast<std::int32_t>(
          std::bit_floor(static_cast<std::uint64_t>(std::min<std::int64_t>(half, end - begin))));
      const std::int32_t tail = end / block * block - block;
      const std::int32_t head = (begin + block - 1) / block * block;
      const std::array parts{std::pair(tail, tail + block), std::pair(head, head + block),
                             std::pair(begin, end)};
      for (const auto& [first, last] : parts) {
        if (first >= begin && last <= end) moves.push_back({s.id, first, last, to});
      }
    }
    return moves;
  }

  const MovePlannerConfig& config_;
  std::span<const Sequence* const> movable_;
  const PoolLoad& load_;
  const RoundPrices& prices_;
  double step_us_;
  std::vector<Join> joins_;
};

}  // namespace

MovePlan plan_moves(const MovePlannerConfig& config, std::span<const Sequence* const> movable,
                    const PoolLoad& load, const RoundPrices& prices) {
  if (load.workers().size() < 2 || movable.empty()) return {};
  return Planner(config, movable, load, prices).plan();
}

}  // namespace tributary
