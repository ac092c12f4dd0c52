#include "core/placement/placement.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <tuple>
#include <utility>

#include "core/base/ceil_div.h"
#include "core/base/error.h"
#include "core/base/limits.h"
#include "core/placement/packing.h"
#include "core/plan/merge_tree.h"

namespace tributary {
namespace {

constexpr std::array<std::pair<SpreadPolicy, std::string_view>, 3> kPolicies = {{
    {SpreadPolicy::kAuto, "auto"},
    {SpreadPolicy::kSingle, "single"},
    {SpreadPolicy::kAll, "all"},
}};

/// Leaf numbers are 32 bits wide in the plan; two lengths below 2^31 (prompt and growth) fit.
constexpr std::int64_t kMaxLimitTokens = std::int64_t{1} << 32;

void check_range(std::string_view name, double value, double low, double high) {
  // Written so that NaN fails.
  if (!(value >= low && value <= high)) {
    fail(ErrorCode::kInvalidArgument, "placement: {} is {}, expected {} .. {}", name, value, low,
         high);
  }
}

/// What `auto` aims at for one sequence, in tokens.
struct Aim {
  std::int64_t line;  // of all sequences on one worker
  std::int64_t most;  // of this sequence on one worker
};

/// N sequences of L tokens in runs of e on W workers, ratio r = cost of a root / cost of a token:
/// homes receive about N (L / e) / W roots each, and the busiest worker holds about e more than the
/// mean m = N L / W. A round is shortest where e + r m / e is: at e = sqrt(r m). For one sequence
/// of p > m tokens, whose own home is the busiest, e + r p / e is what counts.
Aim aim(const PlacementConfig& config, double prompt_tokens, double mean_tokens) {
  // A run given to the least loaded worker, just below the mean, ends half its length or more above
  // it. Measured on a chat trace: 0.5 .. 0.75 differ little.
  constexpr double kLineShare = 0.65;
  // A sequence that covers all workers takes prompt / W of each at least; without some room above
  // that it would be cut into single leaves. Measured on a chat trace: roots shipped per sequence
  // fall until about 1.6, and the 99th percentile of max / mean grows from there.
  constexpr double kCoverRoom = 1.6;
  const double ratio = config.costs.inbound_root_ns / config.costs.attend_token_ns;
  const double run = config.coarseness * std::sqrt(ratio * mean_tokens);
  const double own_run =
      config.coarseness * std::sqrt(ratio * std::max(mean_tokens, prompt_tokens));
  const double most =
      std::max({static_cast<double>(config.leaf_tokens), config.extent_share * mean_tokens,
                kCoverRoom * prompt_tokens / config.workers, own_run});
  const auto tokens = [](double value) {
    return static_cast<std::int64_t>(std::min(value, 0x1p62));
  };
  return {.line = tokens(mean_tokens + kLineShare * run), .most = tokens(most)};
}

double mean_tokens(std::span<const WorkerLoad> loads, std::int64_t more) {
  std::int64_t sum = more;
  for (const WorkerLoad& load : loads) sum += load.tokens;
  return static_cast<double>(sum) / static_cast<double>(loads.size());
}

}  // namespace

SpreadPolicy parse_spread_policy(std::string_view name) {
  for (const auto& [policy, policy_name] : kPolicies) {
    if (name == policy_name) return policy;
  }
  fail(ErrorCode::kInvalidArgument, "spread policy '{}', expected auto, single or all", name);
}

std::string_view spread_policy_name(SpreadPolicy policy) noexcept {
  for (const auto& [known, name] : kPolicies) {
    if (policy == known) return name;
  }
  return "unknown";
}

Placement::Placement(const PlacementConfig& config) : config_(config) {
  if (config.workers < 1) {
    fail(ErrorCode::kInvalidArgument, "placement: {} workers, expected at least 1", config.workers);
  }
  if (config.leaf_tokens < kPageTokens || !std::has_single_bit(unsigned(config.leaf_tokens))) {
    fail(ErrorCode::kInvalidArgument,
         "placement: leaf of {} tokens, expected a power-of-two number of pages of {}",
         config.leaf_tokens, kPageTokens);
  }
  check_range("attend_token_ns", config.costs.attend_token_ns, 1e-6, 1e12);
  check_range("inbound_root_ns", config.costs.inbound_root_ns, 0, 1e12);
  check_range("home_ns", config.costs.home_ns, 0, 1e12);
  check_range("extent_share", config.extent_share, 0, 1);
  check_range("coarseness", config.coarseness, 0, 1e6);
}

void Placement::check_loads(std::span<const WorkerLoad> loads) const {
  if (loads.size() != static_cast<std::size_t>(config_.workers)) {
    fail(ErrorCode::kInvalidArgument, "placement: loads of {} workers, the pool has {}",
         loads.size(), config_.workers);
  }
}

std::optional<Assignment> Placement::place(std::int64_t prompt_tokens, std::int64_t limit_tokens,
                                           SpreadPolicy policy,
                                           std::span<const WorkerLoad> loads) const {
  check_loads(loads);
  if (prompt_tokens < 1 || prompt_tokens > limit_tokens || limit_tokens > kMaxLimitTokens) {
    fail(ErrorCode::kInvalidArgument,
         "placement: prompt of {} tokens with a limit of {}, expected 1 <= prompt <= limit <= {}",
         prompt_tokens, limit_tokens, kMaxLimitTokens);
  }
  // Before any memory is taken for a sequence that cannot fit.
  std::int64_t missing = ceil_div(limit_tokens, kPageTokens);
  for (const WorkerLoad& load : loads) {
    missing -= std::clamp<std::int64_t>(load.available_pages, 0, missing);
  }
  if (missing > 0) return std::nullopt;

  Packing packing(loads, prompt_tokens, limit_tokens, config_.leaf_tokens);
  bool placed = false;
  switch (policy) {
    case SpreadPolicy::kSingle:
      placed = packing.pack_single();
      break;
    case SpreadPolicy::kAll:
      placed = packing.pack_evenly() && packing.reserve_evenly();
      break;
    case SpreadPolicy::kAuto: {
      const Aim target =
          aim(config_, static_cast<double>(prompt_tokens), mean_tokens(loads, prompt_tokens));
      placed = packing.pack_below(target.line, target.most) && packing.reserve_where_free();
      break;
    }
  }
  if (!placed) return std::nullopt;
  const auto& owner = packing.leaf_owner();
  return Assignment{choose_home(std::span(owner).first(packing.prompt_leaves()), loads), owner};
}

std::int32_t Placement::choose_home(std::span<const std::int32_t> prompt_owner,
                                    std::span<const WorkerLoad> loads) const {
  struct Part {
    std::int64_t roots = 0, leaves = 0;
  };
  std::vector<Part> parts(loads.size());
  std::vector<TreeNode> roots;
  const std::size_t leaves = prompt_owner.size();
  for (std::size_t begin = 0, end = 0; begin < leaves; begin = end) {
    while (end < leaves && prompt_owner[end] == prompt_owner[begin]) ++end;
    const std::size_t before = roots.size();
    append_subtree_roots(static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end),
                         static_cast<std::int64_t>(leaves), roots);
    Part& part = parts[static_cast<std::size_t>(prompt_owner[begin])];
    part.roots += static_cast<std::int64_t>(roots.size() - before);
    part.leaves += static_cast<std::int64_t>(end - begin);
  }
  const auto total = static_cast<std::int64_t>(roots.size());
  const auto key = [&](std::size_t w) {
    const std::int64_t inbound = loads[w].inbound_roots + total - parts[w].roots;
    const double cost = config_.costs.inbound_root_ns * static_cast<double>(inbound) +
                        config_.costs.home_ns * static_cast<double>(loads[w].homes);
    return std::pair(cost, -parts[w].leaves);
  };
  auto best = static_cast<std::size_t>(prompt_owner.front());
  for (std::size_t w = 0; w < loads.size(); ++w) {
    if (parts[w].leaves > 0 && key(w) < key(best)) best = w;
  }
  return static_cast<std::int32_t>(best);
}

std::int32_t Placement::place_leaf(std::int32_t reserved_owner, std::int64_t leaf_pages,
                                   std::int32_t home, std::span<const std::int64_t> spread_tokens,
                                   SpreadPolicy policy, std::span<const WorkerLoad> loads) const {
  check_loads(loads);
  if (spread_tokens.size() != loads.size()) {
    fail(ErrorCode::kInvalidArgument, "placement: spread over {} workers, the pool has {}",
         spread_tokens.size(), loads.size());
  }
  for (const auto& [name, worker] : {std::pair("reserved owner", reserved_owner), {"home", home}}) {
    if (worker < 0 || worker >= config_.workers) {
      fail(ErrorCode::kInvalidArgument, "placement: {} is worker {}, the pool has {}", name, worker,
           config_.workers);
    }
  }
  if (policy == SpreadPolicy::kSingle) return reserved_owner;

  const auto line = policy == SpreadPolicy::kAuto ? aim(config_, 0, mean_tokens(loads, 0)).line : 0;
  const auto key = [&](std::int32_t worker) {
    const auto w = static_cast<std::size_t>(worker);
    // `all`: evenly over the pool. `auto`: a leaf at the home ships no root, one elsewhere in the
    // spread may join its neighbour's; neither is worth a worker above the line.
    std::int64_t rank = spread_tokens[w];
    if (policy == SpreadPolicy::kAuto) {
      const bool near = spread_tokens[w] > 0 && loads[w].tokens <= line;
      rank = !near ? 2 : worker == home ? 0 : 1;
    }
    return std::tuple(rank, loads[w].tokens, worker != reserved_owner);
  };
  std::int32_t best = reserved_owner;
  for (std::int32_t w = 0; w < config_.workers; ++w) {
    if (loads[static_cast<std::size_t>(w)].available_pages >= leaf_pages && key(w) < key(best)) {
      best = w;
    }
  }
  return best;
}

}  // namespace tributary
