#include "deploy/service/control/pool_choice.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <tuple>

#include "core/base/limits.h"
#include "core/placement/page_cuts.h"
#include "deploy/service/control/pool_rank.h"

namespace tributary {

bool could_hold(const RegisterPool& pool, const AdmitRequest& request) {
  const std::int64_t limit = request.prompt_tokens + request.max_new_tokens;
  return fits_empty_pool(limit, request.spread, static_cast<std::int64_t>(pool.workers.size()),
                         pool.pages_per_worker, pool.shape.leaf_tokens);
}

std::vector<std::string> pools_to_ask(const PoolRegistry& registry, const AdmitRequest& request) {
  if (request.parent.id != 0) {
    const std::string* pool = registry.pool_of(request.parent.id);
    if (pool == nullptr) {
      fail(ErrorCode::kNotFound, "fork of sequence {}, which is in no pool", request.parent.id);
    }
    return {*pool};
  }
  struct Candidate {
    PoolRank rank;
    std::string name;
  };
  std::vector<Candidate> candidates;
  const Pool* largest = nullptr;
  for (const auto& [name, pool] : registry.pools()) {
    if (pool.state != PoolState::kServing) continue;
    const std::int64_t total = pool.total_pages();
    if (largest == nullptr || total > largest->total_pages()) largest = &pool;
    if (!could_hold(pool.about, request)) continue;
    const double free = static_cast<double>(pool.free_pages()) / static_cast<double>(total);
    candidates.push_back({{1 - free, pool.sequences.size()}, name});
  }
  if (largest == nullptr) {
    fail(ErrorCode::kUnavailable, "no pool serves ({} known)", registry.pools().size());
  }
  if (candidates.empty()) {
    fail(ErrorCode::kTooLarge,
         "{} + {} tokens need {} pages with spread {}; no pool could ever hold them (the largest "
         "has {} pages, {} on each of {} workers, in leaves of {})",
         request.prompt_tokens, request.max_new_tokens,
         pages_of(request.prompt_tokens, request.max_new_tokens),
         spread_policy_name(request.spread), largest->total_pages(),
         largest->about.pages_per_worker, largest->about.workers.size(),
         largest->about.shape.leaf_tokens / kPageTokens);
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(a.rank, a.name) < std::tie(b.rank, b.name);
  });
  std::vector<std::string> names;
  names.reserve(candidates.size());
  for (Candidate& candidate : candidates) names.push_back(std::move(candidate.name));
  return names;
}

int retry_after_seconds(const PoolRegistry& registry, Time start, Time now) {
  constexpr auto kWindow = std::chrono::seconds(30);
  const auto& ends = registry.ends().times;
  const auto first = std::lower_bound(ends.begin(), ends.end(), now - kWindow);
  using Seconds = std::chrono::duration<double>;
  double seconds = 0;
  if (first != ends.end()) {
    // A full list may not reach back to the start of the window.
    const auto begin = ends.size() == PoolRegistry::kEndTimes && first == ends.begin()
                           ? *first
                           : std::max(start, now - kWindow);
    seconds = Seconds(now - begin).count() / static_cast<double>(ends.end() - first);
  } else {
    seconds = Seconds(now - (ends.empty() ? start : std::max(start, ends.back()))).count();
  }
  return static_cast<int>(std::clamp(std::ceil(seconds), 1.0, 30.0));
}

}  // namespace tributary
