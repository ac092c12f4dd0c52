#include "core/placement/spread_search.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/index.h"
#include "core/placement/level_cuts.h"
#include "core/plan/merge_tree.h"

namespace tributary {
namespace {

/// A worker's attention with the whole sequence.
double attend_with(const NewSequence& s, const WorkerLoad& w, const RoundPrices& prices) {
  AttendWork work = w.attend();
  work.leaves += s.leaves;
  const std::int64_t rows = AttendedLength{s.tokens, s.leaves}.rows_of(
      s.leaves, s.tokens, prices.config().attention.topk);
  work.rows += rows;
  work.row_tokens += rows;
  work.merges += s.leaves - 1;
  work.merge_levels = std::max<std::int64_t>(work.merge_levels, tree_height(s.leaves));
  return prices.attend_us(work);
}

constexpr double kLeastGain = 0.05;
/// While a sequence runs, the pool's load is replaced about once. Gaps of less than this share of
/// it are filled early in the sequence's time, while an exchange stays to its end. Simulated on a
/// chat trace with 256 on 8 workers of an H200's figures: with 0.2 steps equal those of whole
/// sequences; with 0.15 they are 5% longer, and 3 workers with 6 sequences gain 5%.
constexpr double kLeastGap = 0.15;

/// The times of rounds in two futures.
struct Outlook {
  /// The step of all running sequences and this one. If this one stays whole, it is the mean over
  /// its time, since its neighbours end and newcomers go elsewhere.
  double joined_us = 0;
  double now_us = 0;  // the same at first
  /// The step of a pool filled with similar sequences up to where this one would be whole, when the
  /// present ones are gone. Their exchanges today do not count: sequences that are cut because
  /// others are would keep each other so.
  double full_us = 0;
};

class Search {
 public:
  Search(const NewSequence& sequence, const PoolLoad& load, const RoundPrices& prices,
         double max_step_us)
      : sequence_(sequence), load_(load), prices_(prices), max_step_us_(max_step_us) {
    for (std::int32_t w = 0; std::cmp_less(w, load.workers().size()); ++w) {
      attend_.push_back(load.attend_us(w, prices));
    }
    busiest_ = *std::ranges::max_element(attend_);
    own_us_ = attend_with(sequence, WorkerLoad{}, prices) - prices.config().costs.attend_us;
  }

  std::optional<Spread> run() {
    std::int32_t whole = least_loaded(sequence_, sequence_.limit_pages, load_, prices_);
    if (whole < 0) whole = least_loaded(sequence_, sequence_.pages, load_, prices_);
    std::optional<Spread> best;
    if (whole >= 0) {
      best = Spread{{{whole, 0, sequence_.leaves}}, whole};
      if (!may_gain(whole) && (max_step_us_ == 0 || sequence_.leaves < 2)) return best;
    }
    trial_.emplace(load_);
    Outlook as_whole;
    if (whole >= 0) {
      as_whole.now_us = as_whole.joined_us = joined_us(*best);
      if (!may_gain(whole) && !late(as_whole)) return best;
      as_whole.full_us = as_whole.joined_us - exchanges_now_us();
      const Excess excess = excess_of(whole);
      as_whole.joined_us -= prices_.config().layers * (excess.now_us - excess.lasting_us);
      look_at_level(whole);
    }
    std::vector<std::pair<Spread, Outlook>> cuts;
    for (std::vector<LeafRun>& runs : level_cuts(sequence_, own_us_, attend_, load_, prices_)) {
      const std::int32_t home = cheapest_home(runs, sequence_.leaves, load_, prices_);
      Spread cut{std::move(runs), home};
      const double joined = joined_us(cut);
      const Outlook us{.joined_us = joined,
                       .now_us = joined,
                       .full_us = as_whole.full_us + exchanges_when_full_us(cut)};
      cuts.emplace_back(std::move(cut), us);
    }
    if (cuts.empty()) return best;
    choose(cuts, as_whole, best);
    return best;
  }

 private:
  /// The amount by which the worker that takes the whole exceeds the level that all would have: at
  /// first, and as a mean over the sequence's time.
  struct Excess {
    double with_us = 0;  // the worker's attention, or the busiest one's
    double now_us = 0;
    double lasting_us = 0;
  };
  [[nodiscard]] Excess excess_of(std::int32_t whole) const {
    const auto workers = static_cast<double>(attend_.size());
    const double with =
        std::max(busiest_, attend_with(sequence_, load_.workers()[at(whole)], prices_));
    const double level = std::max(
        busiest_, (std::accumulate(attend_.begin(), attend_.end(), 0.0) + own_us_) / workers);
    const double now = with - level;
    return {
        .with_us = with,
        .now_us = now,
        .lasting_us = lasting_excess_us(now, attend_[at(whole)], load_.workers()[at(whole)].homes)};
  }

  /// A cut gains at most that excess. Less than kLeastGain of a round is not worth it: small losses
  /// of many sequences add up, and a cut sequence stays cut for longer than it pays.
  [[nodiscard]] bool may_gain(std::int32_t whole) const {
    if (sequence_.leaves < 2 || attend_.size() < 2) return false;
    const Excess excess = excess_of(whole);
    const double held = std::accumulate(attend_.begin(), attend_.end(), own_us_);
    if (!gap_pays(excess.with_us, held, attend_.size())) return false;
    return excess.lasting_us > kLeastGain * (excess.with_us + prices_.config().costs.round_us);
  }

  [[nodiscard]] double joined_us(const Spread& spread) {
    trial_->add(spread.runs, spread.home, sequence_.tokens);
    const double us = trial_->step_us(prices_);
    trial_->remove(spread.runs, spread.home, sequence_.tokens);
    return us;
  }

  /// Counts how many similar sequences fill the pool up to the level of the busiest worker with
  /// this one.
  void look_at_level(std::int32_t whole) {
    const double level =
        std::max(busiest_, attend_with(sequence_, load_.workers()[at(whole)], prices_));
    double room = 0;
    for (const double us : attend_) room += level - us;
    alike_ = std::max(1.0, room / own_us_);
  }

  /// The time that exchanges and merges of such a pool add to a step in which all are whole.
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
    // In an all-gather every worker receives everything.
    const auto per_node = std::min(workers, static_cast<double>(prices_.config().workers_per_node));
    const auto share = [&](Inbound in) {
      const double all = static_cast<double>(in.near + in.far) * workers;
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
    return prices_.config().layers * (query_us + state_us + merge_us);
  }

  /// Exchanges and merges of all running sequences.
  [[nodiscard]] double exchanges_now_us() const {
    const auto us = [&](Exchange exchange) {
      const WorkerTimes now = load_.round(exchange, prices_).slowest;
      return now.queries_us + now.states_us + now.combine_us;
    };
    return prices_.config().layers * std::min(us(Exchange::kAllToAll), us(Exchange::kAllGather));
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

  [[nodiscard]] bool late(const Outlook& us) const {
    return max_step_us_ > 0 && us.now_us > max_step_us_;
  }

  /// Chooses the cut with the least regret among those within the bound, if there are any. The
  /// regret of a cut is how much longer its step is than the best could be, in the worse future.
  /// Where no worker has the pages for the whole, `as_whole` is 0 and the first future decides.
  void choose(std::vector<std::pair<Spread, Outlook>>& cuts, const Outlook& as_whole,
              std::optional<Spread>& best) const {
    const bool may_stay = best.has_value();
    double least = may_stay ? as_whole.joined_us : cuts.front().second.joined_us;
    for (const auto& [cut, us] : cuts) least = std::min(least, us.joined_us);
    const auto regret = [&](const Outlook& us) {
      const double joined = us.joined_us / least;
      return may_stay ? std::max(joined, us.full_us / as_whole.full_us) : joined;
    };
    const auto key = [&](const Outlook& us) { return std::pair(late(us), regret(us)); };
    auto smallest =
        may_stay ? key(as_whole) : std::pair(true, std::numeric_limits<double>::infinity());
    for (auto& [cut, us] : cuts) {
      if (key(us) >= smallest) continue;
      smallest = key(us);
      best = std::move(cut);
    }
  }

  const NewSequence& sequence_;
  const PoolLoad& load_;
  const RoundPrices& prices_;
  double max_step_us_;
  std::vector<double> attend_;  // of each worker
  double busiest_ = 0;
  double own_us_ = 0;  // the sequence's attention, beside others'
  std::optional<PoolLoad> trial_;
  double alike_ = 1;
};

}  // namespace

bool gap_pays(double busiest_us, double sum_us, std::size_t workers) {
  return busiest_us * static_cast<double>(workers) - sum_us >= kLeastGap * sum_us;
}

double lasting_excess_us(double excess_us, double others_us, std::int64_t others) {
  if (others < 2) return excess_us;
  const auto count = static_cast<double>(others);
  const double leaving_us = others_us * (count - 1) / count;
  return excess_us < leaving_us ? excess_us * excess_us / (2 * leaving_us)
                                : excess_us - leaving_us / 2;
}

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
  std::tuple<double, bool, std::int64_t, std::int32_t> least;
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
                         home.worker != runs.back().worker, -home.leaves, home.worker);
    if (best < 0 || key < least) {
      best = home.worker;
      least = key;
    }
  }
  return best;
}

std::optional<Spread> find_spread(const NewSequence& sequence, const PoolLoad& load,
                                  const RoundPrices& prices, double max_step_us) {
  return Search(sequence, load, prices, max_step_us).run();
}

}  // namespace tributary
