#include "core/placement/placement.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <numeric>
#include <tuple>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/placement/page_cuts.h"
#include "core/placement/spread_search.h"

namespace tributary {
namespace {

/// Leaf numbers are 32 bits wide in the plan; two lengths below 2^31 (prompt and growth) fit.
constexpr std::int64_t kMaxLimitTokens = std::int64_t{1} << 32;

void check_costs(const MachineCosts& costs) {
  for_each_cost(costs, [](const char* name, double value) {
    // Written so that NaN fails.
    if (!(value >= 0 && value <= 1e15)) {
      fail(ErrorCode::kInvalidArgument, "placement: {} is {}, expected 0 .. 1e15", name, value);
    }
  });
}

}  // namespace

Placement::Placement(const PlacementConfig& config, double max_step_us)
    : config_(config), prices_(config.model, config.workers), max_step_us_(max_step_us) {
  const int leaf = config.model.leaf_tokens;
  if (leaf < kPageTokens || !std::has_single_bit(unsigned(leaf))) {
    fail(ErrorCode::kInvalidArgument,
         "placement: leaf of {} tokens, expected a power-of-two number of pages of {}", leaf,
         kPageTokens);
  }
  check_costs(config.model.costs);
  if (!(max_step_us >= 0 && max_step_us <= 1e15)) {
    fail(ErrorCode::kInvalidArgument, "placement: steps of at most {} us, expected 0 .. 1e15",
         max_step_us);
  }
}

PoolLoad Placement::empty_load(std::int64_t pages_per_worker) const {
  return {config_.workers, config_.model, pages_per_worker};
}

void Placement::check_load(const PoolLoad& load) const {
  if (load.workers().size() != static_cast<std::size_t>(config_.workers)) {
    fail(ErrorCode::kInvalidArgument, "placement: loads of {} workers, the pool has {}",
         load.workers().size(), config_.workers);
  }
}

std::optional<Assignment> Placement::place(std::int64_t prompt_tokens, std::int64_t limit_tokens,
                                           SpreadPolicy policy, const PoolLoad& load,
                                           PageCut page_cut) const {
  check_load(load);
  if (prompt_tokens < 1 || prompt_tokens > limit_tokens || limit_tokens > kMaxLimitTokens) {
    fail(ErrorCode::kInvalidArgument,
         "placement: prompt of {} tokens with a limit of {}, expected 1 <= prompt <= limit <= {}",
         prompt_tokens, limit_tokens, kMaxLimitTokens);
  }
  // Fails before any memory is taken for a sequence that cannot fit.
  std::int64_t missing = ceil_div(limit_tokens, kPageTokens);
  for (const WorkerLoad& worker : load.workers()) {
    missing -= std::clamp<std::int64_t>(worker.available_pages, 0, missing);
  }
  if (missing > 0) return std::nullopt;

  const int leaf_tokens = config_.model.leaf_tokens;
  Packing packing(load.workers(), prompt_tokens, limit_tokens, leaf_tokens);
  const NewSequence sequence{.tokens = prompt_tokens,
                             .leaves = ceil_div(prompt_tokens, leaf_tokens),
                             .pages = packing.prompt_pages(),
                             .limit_tokens = limit_tokens,
                             .limit_pages = packing.limit_pages(),
                             .leaf_pages = leaf_tokens / kPageTokens};
  switch (policy) {
    case SpreadPolicy::kSingle: {
      const std::int32_t worker = least_loaded(sequence, sequence.limit_pages, load, prices_);
      if (worker < 0 || !packing.pack_single(worker)) return std::nullopt;
      return Assignment{worker, packing.leaf_owner()};
    }
    case SpreadPolicy::kAll: {
      if (!packing.pack_evenly() || !packing.reserve_evenly()) return std::nullopt;
      const auto prompt = std::span(packing.leaf_owner()).first(packing.prompt_leaves());
      return Assignment{cheapest_home(runs_of(prompt), sequence.leaves, load, prices_),
                        packing.leaf_owner()};
    }
    case SpreadPolicy::kAuto:
      break;
  }
  return place_auto(sequence, packing, load, page_cut);
}

std::optional<Assignment> Placement::place_auto(const NewSequence& sequence, Packing& packing,
                                                const PoolLoad& load, PageCut page_cut) const {
  const std::optional<Spread> spread = find_spread(sequence, load, prices_, max_step_us_);
  Packing chosen = packing;
  // The growth of a sequence that stays whole is reserved beside it: a leaf that opens elsewhere is
  // a cut.
  if (spread && spread->runs.size() == 1 && chosen.pack_single(spread->home)) {
    return Assignment{spread->home, chosen.leaf_owner()};
  }
  std::int32_t home = spread ? spread->home : -1;
  if (!spread || !chosen.pack_runs(spread->runs) || !chosen.reserve_where_free()) {
    // The spread found does not fit: pages decide.
    if (!packing.pack_in_turn() || !packing.reserve_where_free()) return std::nullopt;
    chosen = packing;
    const auto prompt = std::span(chosen.leaf_owner()).first(chosen.prompt_leaves());
    home = cheapest_home(runs_of(prompt), sequence.leaves, load, prices_);
  }
  const bool for_pages = least_loaded(sequence, sequence.limit_pages, load, prices_) < 0;
  if (for_pages && page_cut == PageCut::kIfItPays &&
      !page_cut_pays(sequence, runs_of(chosen.leaf_owner()), home, load, prices_)) {
    return std::nullopt;
  }
  return Assignment{home, chosen.leaf_owner()};
}

/// A worker's attention with one leaf more, of which `rows` are attended to.
double Placement::attend_with_leaf_us(const WorkerLoad& worker, std::int64_t rows) const {
  AttendWork work = worker.attend();
  work.leaves += 1;
  work.rows += rows;
  work.row_tokens += rows;
  work.merges += 1;
  return prices_.attend_us(work);
}

/// As at admission: it is no reason for another cut that others are cut and exchange anyway.
bool Placement::leaf_may_cut(std::int32_t home, std::int64_t rows, const PoolLoad& load) const {
  double busiest = 0;
  double sum = 0;
  for (std::int32_t w = 0; w < config_.workers; ++w) {
    const WorkerLoad& worker = load.workers()[static_cast<std::size_t>(w)];
    const double us = w == home ? attend_with_leaf_us(worker, rows) : load.attend_us(w, prices_);
    busiest = std::max(busiest, us);
    sum += us;
  }
  return gap_pays(busiest, sum, load.workers().size());
}

/// A step with one leaf more on `worker`, of which `rows` are attended to, for a sequence whose
/// home is `home` and which may have other leaves on the worker. Queries and roots of a leaf
/// elsewhere are priced as in an all-to-all.
double Placement::leaf_step_us(std::int32_t worker, std::int32_t home, bool held, std::int64_t rows,
                               const PoolLoad& load, const RoundTimes& now) const {
  const auto index = static_cast<std::size_t>(worker);
  const WorkerLoad& w = load.workers()[index];
  RoundTimes after = now;
  after.slowest.attend_us = std::max(now.slowest.attend_us, attend_with_leaf_us(w, rows));
  if (worker != home) {
    constexpr auto kNarrow = Exchange::kAllToAll;
    Inbound queries = load.exchange().queries(worker, kNarrow, prices_);
    Inbound states = load.exchange().states(home, kNarrow, prices_);
    const bool near = load.exchange().near(worker, home);
    const int messages = load.exchange().apart(home, worker) ? 1 : 0;
    if (!held) {
      ++(near ? queries.near : queries.far);
      (near ? queries.near_messages : queries.far_messages) += messages;
      (near ? states.near_messages : states.far_messages) += messages;
    }
    ++(near ? states.near : states.far);
    after.slowest.queries_us =
        std::max(now.slowest.queries_us, prices_.queries_us(queries, kNarrow));
    after.slowest.states_us = std::max(now.slowest.states_us, prices_.states_us(states, kNarrow));
  }
  return after.step_us(config_.model, load.sequences());
}

std::int32_t Placement::place_leaf(std::int32_t reserved_owner, std::int64_t leaf_pages,
                                   std::int32_t home, std::span<const std::int64_t> spread_tokens,
                                   SpreadPolicy policy, const PoolLoad& load) const {
  check_load(load);
  const std::span<const WorkerLoad> workers = load.workers();
  if (spread_tokens.size() != workers.size()) {
    fail(ErrorCode::kInvalidArgument, "placement: spread over {} workers, the pool has {}",
         spread_tokens.size(), workers.size());
  }
  for (const auto& [name, worker] : {std::pair("reserved owner", reserved_owner), {"home", home}}) {
    if (worker < 0 || worker >= config_.workers) {
      fail(ErrorCode::kInvalidArgument, "placement: {} is worker {}, the pool has {}", name, worker,
           config_.workers);
    }
  }
  if (policy == SpreadPolicy::kSingle) return reserved_owner;

  const RoundTimes now =
      policy == SpreadPolicy::kAuto ? load.round(Exchange::kAllToAll, prices_) : RoundTimes{};
  // Of the leaf when it is full.
  const int leaf_tokens = config_.model.leaf_tokens;
  const std::int64_t length =
      std::accumulate(spread_tokens.begin(), spread_tokens.end(), std::int64_t{leaf_tokens});
  const std::int64_t rows = AttendedLength{length, ceil_div(length, leaf_tokens)}.rows_of(
      1, leaf_tokens, config_.model.attention.topk);
  const bool may_cut = policy == SpreadPolicy::kAll || leaf_may_cut(home, rows, load);
  const auto key = [&](std::int32_t worker) {
    const auto w = static_cast<std::size_t>(worker);
    // `all`: evenly over the pool. `auto`: a leaf at the home ships no root, one elsewhere in the
    // spread may join its neighbour's.
    const bool held = spread_tokens[w] > 0;
    const int distance = worker == home ? 0 : held ? 1 : 2;
    const bool automatic = policy == SpreadPolicy::kAuto;
    return std::tuple(!may_cut && distance == 2,
                      automatic ? leaf_step_us(worker, home, held, rows, load, now) : 0.0,
                      automatic ? distance : spread_tokens[w], workers[w].tokens,
                      worker != reserved_owner);
  };
  std::int32_t best = reserved_owner;
  auto least = key(best);
  for (std::int32_t w = 0; w < config_.workers; ++w) {
    if (workers[static_cast<std::size_t>(w)].available_pages < leaf_pages) continue;
    if (const auto other = key(w); other < least) {
      best = w;
      least = other;
    }
  }
  return best;
}

}  // namespace tributary
