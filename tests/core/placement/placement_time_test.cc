// The purpose of `auto`: a predicted step that is no longer than with the better fixed policy, and
// close to the best possible. Sequences are admitted one by one and nothing is moved later.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cost/built_in_costs.h"
#include "core/placement/packing.h"
#include "core/placement/placement.h"

namespace tributary {
namespace {

constexpr std::int64_t kTimedLeaf = 2048;
constexpr std::int64_t kNoBound = std::int64_t{1} << 40;

/// DeepSeek-V3 on nodes of eight GPUs.
CostModelConfig model_of(std::string_view gpu) {
  CostModelConfig model = default_cost_model(kTimedLeaf);
  model.costs = find_built_in_costs(gpu).costs;
  model.layers = 61;
  model.workers_per_node = 8;
  return model;
}

double step_us(const Placement& placement, const std::vector<std::int64_t>& lengths,
               SpreadPolicy policy) {
  PoolLoad load = placement.empty_load(kNoBound);
  for (const std::int64_t tokens : lengths) {
    const auto found = placement.place(tokens, tokens, policy, load);
    load.add(runs_of(found->leaf_owner), found->home, tokens);
  }
  return load.step_us(placement.prices());
}

double better_fixed_us(const Placement& placement, const std::vector<std::int64_t>& lengths) {
  return std::min(step_us(placement, lengths, SpreadPolicy::kSingle),
                  step_us(placement, lengths, SpreadPolicy::kAll));
}

class PlacementTime : public testing::TestWithParam<const char*> {};

TEST_P(PlacementTime, UniformBatchesTakeHardlyLongerThanWithTheBetterFixedPolicy) {
  int cells = 0;
  int as_good = 0;
  int better = 0;
  for (const int nodes : {1, 2, 8}) {
    const Placement placement({.workers = 8 * nodes, .model = model_of(GetParam())});
    for (const int batch : {1, 8, 16, 64, 256}) {
      for (const std::int64_t tokens : {4096, 32'768, 131'072, 1 << 20}) {
        const std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch), tokens);
        const double ratio =
            step_us(placement, lengths, SpreadPolicy::kAuto) / better_fixed_us(placement, lengths);
        // A first sequence is cut before it is known how many follow: moves repair that.
        EXPECT_LE(ratio, 1.25) << nodes << " nodes, " << batch << " of " << tokens;
        ++cells;
        as_good += ratio <= 1.02 ? 1 : 0;
        better += ratio < 0.98 ? 1 : 0;
        if (tokens <= 32'768) {
          EXPECT_LE(ratio, 1.02) << nodes << " nodes, " << batch;
        }
      }
    }
  }
  EXPECT_EQ(cells, 60);
  EXPECT_GE(as_good, 40);
  EXPECT_GE(better, 8);
}

TEST_P(PlacementTime, MixedBatchesAreShorterThanWithEitherFixedPolicy) {
  std::mt19937 random(7);
  for (const int workers : {8, 16, 64}) {
    const Placement placement({.workers = workers, .model = model_of(GetParam())});
    for (const int batch : {workers, 4 * workers}) {
      // Chat lengths, 1k to 32k, with some of 128k and one in a hundred of 1M.
      std::vector<std::int64_t> lengths;
      for (int i = 0; i < batch; ++i) {
        const double fraction = static_cast<double>(random() % 1000) / 1000;
        lengths.push_back(i % 100 == 6 ? 1 << 20
                          : i % 50 == 30
                              ? 131'072
                              : static_cast<std::int64_t>(1000 * std::exp2(5 * fraction)));
      }
      const double ratio =
          step_us(placement, lengths, SpreadPolicy::kAuto) / better_fixed_us(placement, lengths);
      EXPECT_LE(ratio, 1.05) << batch << " on " << workers;
      if (workers > 8) {
        EXPECT_LE(ratio, 0.8) << batch << " on " << workers;
      }
    }
  }
}

/// Three workers, and each sequence whole, in two or in three runs: all combinations that may be
/// shorter than what is known.
class Exhaustive {
 public:
  Exhaustive(const Placement& placement, std::vector<std::int64_t> lengths, double known_us)
      : prices_(placement.prices()),
        load_(placement.empty_load(kNoBound)),
        lengths_(std::move(lengths)),
        best_us_(known_us) {
    std::ranges::sort(lengths_, std::ranges::greater{});
    for (const std::int64_t tokens : lengths_) options_.push_back(options(tokens / kTimedLeaf));
    rest_us_.assign(lengths_.size() + 1, 0);
    for (std::size_t i = lengths_.size(); i-- > 0;) {
      const double one =
          prices_.attend_us({.leaves = 1, .rows = lengths_[i], .row_tokens = lengths_[i]}) -
          prices_.config().costs.attend_us;
      rest_us_[i] = rest_us_[i + 1] + one;
    }
    look(0);
  }
  [[nodiscard]] double best_us() const { return best_us_; }

 private:
  struct Option {
    std::vector<LeafRun> runs;
    std::int32_t home;
  };

  static std::vector<Option> options(std::int64_t leaves) {
    std::vector<Option> found;
    for (std::int32_t a = 0; a < 3; ++a) {
      found.push_back({{{a, 0, leaves}}, a});
      for (std::int32_t b = 0; b < 3; ++b) {
        for (const std::int64_t cut : {leaves / 3, leaves / 2}) {
          if (a == b || cut == 0) continue;
          found.push_back({{{a, 0, cut}, {b, cut, leaves}}, a});
          found.push_back({{{a, 0, cut}, {b, cut, leaves}}, b});
        }
      }
      if (leaves < 3) continue;
      const std::int64_t third = leaves / 3;
      found.push_back({{{0, 0, third}, {1, third, 2 * third}, {2, 2 * third, leaves}}, a});
    }
    return found;
  }

  /// A step grows with every sequence, and the busiest worker holds the mean at least.
  [[nodiscard]] double bound_us(std::size_t next) const {
    double sum = rest_us_[next];
    double most = 0;
    for (std::int32_t w = 0; w < 3; ++w) {
      const double us = load_.attend_us(w, prices_);
      sum += us;
      most = std::max(most, us);
    }
    return load_.step_us(prices_) + prices_.config().layers * std::max(0.0, sum / 3 - most);
  }

  void look(std::size_t next) {
    if (bound_us(next) >= best_us_ * (1 - 1e-9)) return;
    if (next == lengths_.size()) {
      best_us_ = load_.step_us(prices_);
      return;
    }
    for (const Option& option : options_[next]) {
      // Workers are alike: the longest sequence starts on worker 0, and goes on on worker 1.
      if (next == 0 && (option.runs[0].worker != 0 || option.runs.back().worker > 1)) {
        if (option.runs.size() < 3) continue;
      }
      load_.add(option.runs, option.home, lengths_[next]);
      look(next + 1);
      load_.remove(option.runs, option.home, lengths_[next]);
    }
  }

  const RoundPrices& prices_;
  PoolLoad load_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::vector<Option>> options_;
  std::vector<double> rest_us_;  // attention of the sequences from i on
  double best_us_;
};

TEST_P(PlacementTime, SixSequencesOnThreeWorkersAreNearTheOptimum) {
  const Placement placement({.workers = 3, .model = model_of(GetParam())});
  std::mt19937 random(5);
  std::vector<double> ratios;
  for (int trial = 0; trial < 8; ++trial) {
    std::vector<std::int64_t> lengths;
    for (int i = 0; i < 6; ++i) lengths.push_back(3 * kTimedLeaf << (random() % 8));
    const double found = step_us(placement, lengths, SpreadPolicy::kAuto);
    const double known = std::min(found, better_fixed_us(placement, lengths));
    ratios.push_back(found / Exhaustive(placement, lengths, known).best_us());
  }
  std::ranges::sort(ratios);
  EXPECT_LE(ratios[ratios.size() / 2], 1.05);
  EXPECT_LE(ratios.back(), 1.2);
}

// One sequence on an empty pool of eight: whole while it is short, cut where attention is longer
// than what its exchanges take.
TEST_P(PlacementTime, ASequenceIsCutWhereThatPays) {
  const Placement placement({.workers = 8, .model = model_of(GetParam())});
  const PoolLoad empty = placement.empty_load(kNoBound);
  const auto workers = [&](std::int64_t tokens) {
    const auto found = placement.place(tokens, tokens, SpreadPolicy::kAuto, empty);
    return runs_of(found->leaf_owner).size();
  };
  EXPECT_EQ(workers(4096), 1U);
  EXPECT_EQ(workers(32'768), 1U);
  EXPECT_GT(workers(1 << 18), 1U);
  EXPECT_EQ(workers(1 << 20), 8U);
}

INSTANTIATE_TEST_SUITE_P(Gpus, PlacementTime, testing::Values("h100", "h200"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tributary
