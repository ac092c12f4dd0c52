#include "core/placement/spread_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <queue>
#include <tuple>
#include <utility>

#include "core/plan/merge_tree.h"

namespace tributary {
namespace {

std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

/// A worker's attention with the whole sequence.
double attend_with(const NewSequence& s, const WorkerLoad& w, const RoundPrices& prices) {
  const std::int64_t tokens = w.tokens + s.tokens;
  return prices.attend_us(w.leaves + s.leaves, tokens, tokens, w.merges + s.leaves - 1,
                          std::max(w.merge_heights.height(), tree_height(s.leaves)));
}

constexpr double kLeastGain = 0.05;

/// What rounds take, in two futures.
struct Outlook {
  double joined_us = 0;  // the step of all that run and this sequence: nobody else comes
  double full_us = 0;    // that of a pool filled with its like up to where it would stand whole
};

class Search {
 public:
  Search(const NewSequence& sequence, const PoolLoad& load, const RoundPrices& prices)
      : sequence_(sequence), load_(load), prices_(prices) {
    for (std::int32_t w = 0; std::cmp_less(w, load.workers().size()); ++w) {
      attend_.push_back(load.attend_us(w, prices));
    }
    busiest_ = *std::ranges::max_element(attend_);
    own_us_ = attend_with(sequence, WorkerLoad{}, prices) - prices.config().costs.attend_us;
  }

  std::optional<Spread> run() {
    const std::int32_t whole = least_loaded(sequence_, sequence_.pages, load_, prices_);
    std::optional<Spread> best;
    if (whole >= 0) {
      best = Spread{{{whole, 0, sequence_.leaves}}, whole};
      if (!may_gain(whole)) return best;
    }
    trial_.emplace(load_);
    double whole_us = 0;
    if (whole >= 0) {
      whole_us = joined_us(*best);
      look_at_level(whole);
    }
    std::vector<std::pair<Spread, Outlook>> cuts;
    for_each_cut([&](Spread cut) {
      trial_->add(cut.runs, cut.home, sequence_.tokens);
      const double joined = trial_->step_us(prices_);
      const double full = whole >= 0 ? whole_us + exchanges_when_full_us(cut) : 0;
      trial_->remove(cut.runs, cut.home, sequence_.tokens);
      cuts.emplace_back(std::move(cut), Outlook{joined, full});
    });
    if (cuts.empty()) return best;
    choose(cuts, whole_us, best);
    return best;
  }

 private:
  /// A cut gains what the busiest worker exceeds the level that all would have, at most. Less than
  /// kLeastGain of a round is not worth it: small losses of many sequences add up, and what is cut
  /// stays cut for longer than it pays.
  [[nodiscard]] bool may_gain(std::int32_t whole) const {
    const auto workers = static_cast<double>(attend_.size());
    if (sequence_.leaves < 2 || workers < 2) return false;
    const double with =
        std::max(busiest_, attend_with(sequence_, load_.workers()[at(whole)], prices_));
    const double level = std::max(
        busiest_, (std::accumulate(attend_.begin(), attend_.end(), 0.0) + own_us_) / workers);
    return with - level > kLeastGain * (with + prices_.config().costs.round_us);
  }

  [[nodiscard]] double joined_us(const Spread& spread) {
    trial_->add(spread.runs, spread.home, sequence_.tokens);
    const double us = trial_->step_us(prices_);
    trial_->remove(spread.runs, spread.home, sequence_.tokens);
    return us;
  }

  /// How many of its like fill the pool up to the level of the busiest worker with it.
  void look_at_level(std::int32_t whole) {
    const double level =
        std::max(busiest_, attend_with(sequence_, load_.workers()[at(whole)], prices_));
    double room = 0;
    for (const double us : attend_) room += level - us;
    alike_ = std::max(1.0, room / own_us_);
    now_ = load_.round(Exchange::kAllToAll, prices_).slowest;
  }

  /// What exchanges and merges of such a pool add to a step in which all are whole.
  [[nodiscard]] double exchanges_when_full_us(const Spread& cut) const {
    const auto workers = static_cast<double>(attend_.size());
    const ExchangeLoad& exchange = load_.exchange();
    const auto a_home = static_cast<std::int64_t>(std::ceil(alike_ / workers));
    Inbound queries;
    Inbound states;
    std::int64_t roots = 0;
    for (const auto& [worker, count] : roots_of(cut.runs)) {
      roots += count;
      if (worker == cut.home) continue;
      const bool near = exchange.near(cut.home, worker);
      (near ? queries.near : queries.far) += a_home;
      (near ? states.near : states.far) += a_home * count;
      ++(near ? queries.near_messages : queries.far_messages);
    }
    states.near_messages = queries.near_messages;
    states.far_messages = queries.far_messages;
    const auto narrow = std::pair(prices_.gather_us(queries.near + queries.far) +
                                      prices_.queries_us(queries, Exchange::kAllToAll),
                                  prices_.states_us(states, Exchange::kAllToAll));
    // Of an all-gather every worker gets all.
    const auto per_node = std::min(workers, double(prices_.config().workers_per_node));
    const auto share = [&](Inbound in) {
      const double all = double(in.near + in.far) * workers;
      Inbound out = prices_.gather_messages();
      out.near = std::llround(all * (per_node - 1) / workers);
      out.far = std::llround(all * (workers - per_node) / workers);
      return out;
    };
    queries.near = a_home;
    queries.far = 0;
    const auto wide = std::pair(prices_.queries_us(share(queries), Exchange::kAllGather),
                                prices_.states_us(share(states), Exchange::kAllGather));
    const auto& [query_us, state_us] =
        narrow.first + narrow.second <= wide.first + wide.second ? narrow : wide;
    const double merge_us = prices_.combine_us(
        a_home * (roots - 1), std::bit_width(static_cast<std::uint64_t>(roots - 1)));
    const auto more = [](double us, double now) { return std::max(0.0, us - now); };
    return prices_.config().layers *
           (more(query_us, now_.queries_us) + more(state_us, now_.states_us) +
            more(merge_us, now_.combine_us));
  }

  [[nodiscard]] std::vector<std::pair<std::int32_t, std::int64_t>> roots_of(
      std::span<const LeafRun> runs) const {
    std::vector<std::pair<std::int32_t, std::int64_t>> found;
    std::vector<TreeNode> nodes;
    for (const LeafRun& run : runs) {
      nodes.clear();
      append_subtree_roots(run.begin, run.end, sequence_.leaves, nodes);
      found.emplace_back(run.worker, std::ssize(nodes));
    }
    return found;
  }

  /// The least regret: how much longer a step is than the best could be, in the worse future.
  static void choose(std::vector<std::pair<Spread, Outlook>>& cuts, double whole_us,
                     std::optional<Spread>& best) {
    double least = whole_us > 0 ? whole_us : cuts.front().second.joined_us;
    for (const auto& [cut, us] : cuts) least = std::min(least, us.joined_us);
    const auto regret = [&](const Outlook& us) {
      return std::max(us.joined_us / least, whole_us > 0 ? us.full_us / whole_us : 1.0);
    };
    double smallest = whole_us > 0 ? whole_us / least : std::numeric_limits<double>::infinity();
    for (auto& [cut, us] : cuts) {
      if (regret(us) >= smallest) continue;
      smallest = regret(us);
      best = std::move(cut);
    }
  }

  // Cuts.

  template <typename Visit>
  void for_each_cut(Visit visit) const {
    for (const std::vector<std::int32_t>& workers : worker_sets()) {
      const auto share = std::max<std::int64_t>(1, sequence_.leaves / std::ssize(workers));
      const auto largest =
          static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(share)));
      for (std::int64_t unit = largest; unit >= 1 && unit >= largest / 4; unit /= 2) {
        std::vector<LeafRun> runs = level_runs(workers, unit);
        if (runs.size() < 2) continue;
        const std::int32_t home = cheapest_home(runs, sequence_.leaves, load_, prices_);
        visit(Spread{std::move(runs), home});
      }
    }
  }

  /// The least loaded 2, 4, .. workers of one node, then all of 2, 4, .. nodes.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> worker_sets() const {
    const int per_node = prices_.config().workers_per_node;
    std::vector<std::vector<std::int32_t>> nodes;
    for (std::int32_t w = 0; std::cmp_less(w, attend_.size()); ++w) {
      if (w % per_node == 0) nodes.emplace_back();
      nodes.back().push_back(w);
    }
    const auto us = [&](std::int32_t w) { return attend_[at(w)]; };
    const auto sum = [&](const std::vector<std::int32_t>& node, std::size_t count) {
      double total = 0;
      for (std::size_t i = 0; i < count; ++i) total += us(node[i]);
      return total;
    };
    for (auto& node : nodes) std::ranges::stable_sort(node, {}, us);
    std::vector<std::vector<std::int32_t>> sets;
    const auto doubled = [](std::size_t count, std::size_t most) {
      return count == most ? most + 1 : std::min(2 * count, most);
    };
    const std::size_t widest = nodes.front().size();
    for (std::size_t count = 2; count <= widest; count = doubled(count, widest)) {
      const std::vector<std::int32_t>* best = nullptr;
      for (const auto& node : nodes) {
        if (node.size() < count) continue;
        if (best == nullptr || sum(node, count) < sum(*best, count)) best = &node;
      }
      sets.emplace_back(best->begin(), best->begin() + static_cast<std::ptrdiff_t>(count));
    }
    std::ranges::stable_sort(nodes, {}, [&](const auto& node) {
      return sum(node, node.size()) / static_cast<double>(node.size());
    });
    for (std::size_t count = 2; count <= nodes.size(); count = doubled(count, nodes.size())) {
      std::vector<std::int32_t>& set = sets.emplace_back();
      for (std::size_t n = 0; n < count; ++n) {
        set.insert(set.end(), nodes[n].begin(), nodes[n].end());
      }
    }
    return sets;
  }

  /// Runs that bring `workers` to one level of attention, in aligned units of leaves; the longest
  /// run first, so that it is cut at as few places of the tree as possible. None if they lack the
  /// pages.
  [[nodiscard]] std::vector<LeafRun> level_runs(std::span<const std::int32_t> workers,
                                                std::int64_t unit) const {
    struct Level {
      double us;
      std::size_t index;
      bool operator<(const Level& other) const {  // the top of a queue is the lowest
        return std::tie(us, index) > std::tie(other.us, other.index);
      }
    };
    const double leaf_us = own_us_ / static_cast<double>(sequence_.leaves);
    std::priority_queue<Level> levels;
    for (std::size_t i = 0; i < workers.size(); ++i) levels.push({attend_[at(workers[i])], i});
    std::vector<LeafRun> runs;
    for (const std::int32_t worker : workers) runs.push_back({worker, 0, 0});
    for (std::int64_t left = sequence_.leaves; left > 0;) {
      if (levels.empty()) return {};
      Level level = levels.top();
      levels.pop();
      LeafRun& run = runs[level.index];
      const std::int64_t more = std::min(unit, left);
      if ((run.end + more) * sequence_.leaf_pages >
          load_.workers()[at(run.worker)].available_pages) {
        continue;
      }
      run.end += more;
      left -= more;
      level.us += static_cast<double>(more) * leaf_us;
      levels.push(level);
    }
    std::ranges::stable_sort(runs, std::ranges::greater{}, &LeafRun::end);
    std::erase_if(runs, [](const LeafRun& run) { return run.end == 0; });
    std::int64_t begin = 0;
    for (LeafRun& run : runs) {
      run.begin = std::exchange(begin, begin + run.end);
      run.end = begin;
    }
    return runs;
  }

  const NewSequence& sequence_;
  const PoolLoad& load_;
  const RoundPrices& prices_;
  std::vector<double> attend_;  // of each worker
  double busiest_ = 0;
  double own_us_ = 0;  // the sequence's attention, beside others'
  std::optional<PoolLoad> trial_;
  double alike_ = 1;
  WorkerTimes now_;
};

}  // namespace

std::int32_t least_loaded(const NewSequence& sequence, std::int64_t pages, const PoolLoad& load,
                          const RoundPrices& prices) {
  const std::span<const WorkerLoad> workers = load.workers();
  double attend = 0;
  double project = 0;
  for (std::int32_t w = 0; std::cmp_less(w, workers.size()); ++w) {
    attend = std::max(attend, load.attend_us(w, prices));
    project = std::max(project, prices.project_us(workers[at(w)].homes));
  }
  std::int32_t best = -1;
  std::tuple<double, double, std::int64_t> least;
  for (std::int32_t w = 0; std::cmp_less(w, workers.size()); ++w) {
    const WorkerLoad& worker = workers[at(w)];
    if (worker.available_pages < pages) continue;
    const double with = attend_with(sequence, worker, prices);
    const double home = prices.project_us(worker.homes + 1);
    const std::tuple key(std::max(attend, with) + std::max(project, home), with + home,
                         worker.homes);
    if (best < 0 || key < least) {
      best = w;
      least = key;
    }
  }
  return best;
}

std::int32_t cheapest_home(std::span<const LeafRun> runs, std::int64_t leaves, const PoolLoad& load,
                           const RoundPrices& prices) {
  const ExchangeLoad& exchange = load.exchange();
  struct Owner {
    std::int32_t worker;
    std::int64_t roots, leaves;
  };
  std::vector<Owner> owners;
  std::vector<TreeNode> nodes;
  for (const LeafRun& run : runs) {
    nodes.clear();
    append_subtree_roots(run.begin, run.end, leaves, nodes);
    const auto known = std::ranges::find(owners, run.worker, &Owner::worker);
    Owner& owner = known == owners.end() ? owners.emplace_back(Owner{run.worker, 0, 0}) : *known;
    owner.roots += std::ssize(nodes);
    owner.leaves += run.end - run.begin;
  }
  std::int32_t best = -1;
  std::tuple<double, std::int64_t, std::int32_t> least;
  for (const Owner& home : owners) {
    Inbound in = exchange.states(home.worker, Exchange::kAllToAll, prices);
    for (const Owner& owner : owners) {
      if (owner.worker == home.worker) continue;
      (exchange.near(home.worker, owner.worker) ? in.near : in.far) += owner.roots;
    }
    const WorkerLoad& worker = load.workers()[at(home.worker)];
    const std::tuple key(prices.states_us(in, Exchange::kAllToAll) +
                             prices.combine_us(worker.home_merges + std::ssize(runs), 0) +
                             prices.project_us(worker.homes + 1),
                         -home.leaves, home.worker);
    if (best < 0 || key < least) {
      best = home.worker;
      least = key;
    }
  }
  return best;
}

std::optional<Spread> find_spread(const NewSequence& sequence, const PoolLoad& load,
                                  const RoundPrices& prices) {
  return Search(sequence, load, prices).run();
}

}  // namespace tributary
