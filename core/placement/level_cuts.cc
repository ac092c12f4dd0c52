#include "core/placement/level_cuts.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <queue>
#include <tuple>
#include <utility>

#include "core/base/index.h"

namespace tributary {
namespace {

class LevelCuts {
 public:
  LevelCuts(const NewSequence& sequence, double own_us, std::span<const double> attend_us,
            const PoolLoad& load, int workers_per_node)
      : sequence_(sequence),
        own_us_(own_us),
        attend_(attend_us),
        load_(load),
        workers_per_node_(workers_per_node) {}

  /// The least loaded 2, 4, .. workers of one node, then all of 2, 4, .. nodes.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> worker_sets() const {
    const int per_node = workers_per_node_;
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
      const std::vector<std::int32_t>* best = &nodes.front();
      for (const auto& node : nodes) {
        if (node.size() >= count && sum(node, count) < sum(*best, count)) best = &node;
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

 private:
  const NewSequence& sequence_;
  double own_us_;
  std::span<const double> attend_;
  const PoolLoad& load_;
  int workers_per_node_;
};

}  // namespace

std::vector<std::vector<LeafRun>> level_cuts(const NewSequence& sequence, double own_us,
                                             std::span<const double> attend_us,
                                             const PoolLoad& load, const RoundPrices& prices) {
  const LevelCuts cuts(sequence, own_us, attend_us, load, prices.config().workers_per_node);
  std::vector<std::vector<LeafRun>> found;
  for (const std::vector<std::int32_t>& workers : cuts.worker_sets()) {
    const auto share = std::max<std::int64_t>(1, sequence.leaves / std::ssize(workers));
    const auto largest =
        static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(share)));
    // Smaller units level better, larger ones ship fewer roots.
    for (std::int64_t unit = largest; unit >= 1 && unit >= largest / 4; unit /= 2) {
      std::vector<LeafRun> runs = cuts.level_runs(workers, unit);
      if (runs.size() >= 2) found.push_back(std::move(runs));
    }
  }
  return found;
}

}  // namespace tributary
