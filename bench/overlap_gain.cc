// What rounds would gain at best if the exchange of one half of their items ran under the attention
// of the other half, by the cost model: over the grid of `tributary plan --table` and over mixed
// batches, for pools that project at home and at their leaves; and what the latter gains by itself.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <exception>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/base/ceil_div.h"
#include "core/cost/built_in_costs.h"
#include "core/cost/overlap.h"
#include "core/model/model_shape.h"
#include "core/model/pool_shape.h"
#include "core/placement/packing.h"
#include "core/placement/placement.h"

namespace tributary {
namespace {

constexpr std::int64_t kNoBound = std::int64_t{1} << 40;  // pages
constexpr double kSome = 0.03;                            // a gain worth its code

using Batch = std::vector<PlacedSequence>;

CostModelConfig model_of(const std::string& gpu, ProjectAt place) {
  const ModelShape& v3 = model_preset("deepseek-v3");
  CostModelConfig model = default_cost_model();
  model.costs = find_built_in_costs(gpu).costs;
  model.attention = attention_shape(v3, RowFormat::kBF16, DType::kBF16, place);
  model.layers = v3.num_hidden_layers;
  model.workers_per_node = 8;
  return model;
}

/// One by one, as a pool admits them.
Batch place_all(const Placement& placement, const std::vector<std::int64_t>& lengths,
                SpreadPolicy policy) {
  PoolLoad load = placement.empty_load(kNoBound);
  Batch batch;
  for (const std::int64_t tokens : lengths) {
    const auto found = placement.place(tokens, tokens, policy, load);
    batch.push_back({.runs = runs_of(found->leaf_owner), .home = found->home, .tokens = tokens});
    load.add(batch.back());
  }
  return batch;
}

/// Every sequence over `spread` neighbours, homes in turn.
Batch place_alike(const std::vector<std::int64_t>& lengths, int workers, int leaf_tokens,
                  int spread) {
  Batch batch;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t leaves = ceil_div(lengths[i], std::int64_t{leaf_tokens});
    const std::int64_t parts = std::min<std::int64_t>(spread, leaves);
    const auto first = static_cast<std::int64_t>(i) * spread;
    PlacedSequence s{.runs = {}, .home = 0, .tokens = lengths[i]};
    for (std::int64_t p = 0; p < parts; ++p) {
      s.runs.push_back({static_cast<std::int32_t>((first + p) % workers), leaves * p / parts,
                        leaves * (p + 1) / parts});
    }
    s.home = s.runs[static_cast<std::size_t>(first / workers % parts)].worker;
    batch.push_back(std::move(s));
  }
  return batch;
}

/// The shortest steps over all placements: as rounds are, and with halves where these are shorter.
struct Cell {
  double now_us = std::numeric_limits<double>::infinity();
  double halves_us = std::numeric_limits<double>::infinity();
  double free_us = std::numeric_limits<double>::infinity();
  double auto_gain = 0;  // of the placement that `auto` makes

  void see(const OverlapGain& gain) {
    now_us = std::min(now_us, gain.step_us);
    halves_us = std::min({halves_us, gain.step_us, gain.halves_us});
    free_us = std::min(free_us, gain.free_us);
  }
  [[nodiscard]] double gain() const { return 1 - halves_us / now_us; }
  [[nodiscard]] double bound() const { return 1 - free_us / now_us; }
};

Cell look_at(const CostModelConfig& model, int workers, const std::vector<std::int64_t>& lengths) {
  const Placement placement({.workers = workers, .model = model});
  Cell cell;
  const OverlapGain chosen =
      predict_overlap(model, place_all(placement, lengths, SpreadPolicy::kAuto), workers);
  cell.see(chosen);
  cell.auto_gain = std::max(0.0, 1 - chosen.halves_us / chosen.step_us);
  for (int spread = 1;; spread = std::min(2 * spread, workers)) {
    cell.see(
        predict_overlap(model, place_alike(lengths, workers, model.leaf_tokens, spread), workers));
    if (spread == workers) break;
  }
  return cell;
}

/// Chat lengths, 1k to 32k, with one in fifty of 128k and one in a hundred of 1M.
std::vector<std::int64_t> mixed_lengths(int batch, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < batch; ++i) {
    const double fraction = static_cast<double>(random() % 1000) / 1000;
    lengths.push_back(i % 100 == 6   ? 1 << 20
                      : i % 50 == 30 ? 131'072
                                     : static_cast<std::int64_t>(1000 * std::exp2(5 * fraction)));
  }
  return lengths;
}

struct Summary {
  int cells = 0, some = 0;
  std::vector<double> steps_us;
  double most = 0, most_bound = 0, most_auto = 0;
  std::string where = "-";

  void see(const Cell& cell, const std::string& name) {
    ++cells;
    steps_us.push_back(cell.now_us);
    some += cell.gain() >= kSome ? 1 : 0;
    most_bound = std::max(most_bound, cell.bound());
    most_auto = std::max(most_auto, cell.auto_gain);
    if (cell.gain() < most + 1e-6) return;  // roundings
    most = cell.gain();
    where = name;
  }
};

/// How many times longer steps were before, in the same cells: least and most, and in how many
/// cells longer at all.
std::string speedup(const std::vector<double>& before_us, const std::vector<double>& us) {
  if (before_us.empty()) return "";
  double least = std::numeric_limits<double>::infinity();
  double most = 0;
  int faster = 0;
  for (std::size_t i = 0; i < us.size(); ++i) {
    const double ratio = before_us[i] / us[i];
    least = std::min(least, ratio);
    most = std::max(most, ratio);
    faster += ratio > 1 ? 1 : 0;
  }
  return fmt::format("{:.2f} to {:.2f}, above 1 in {}", least, most, faster);
}

std::string percent(double share) {
  return fmt::format("{:.1f}%", 100 * share);
}

void run(const std::string& gpu, bool cells) {
  fmt::print("machine: {}\n", find_built_in_costs(gpu).description);
  fmt::print(
      "| workers | projected at | batches | cells | gain 3% or more | most | where | most, `auto` "
      "| if halves cost nothing | home's step / this |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int nodes : {1, 2, 8}) {
    const int workers = 8 * nodes;
    std::array<std::vector<double>, 2> at_home_us;  // of equal, of mixed batches
    for (const ProjectAt place : {ProjectAt::kHome, ProjectAt::kLeaves}) {
      const CostModelConfig model = model_of(gpu, place);
      Summary uniform;
      Summary mixed;
      const auto see = [&](Summary& summary, const std::vector<std::int64_t>& lengths,
                           const std::string& name) {
        const Cell cell = look_at(model, workers, lengths);
        summary.see(cell, name);
        if (!cells) return;
        fmt::print(stderr, "{} {} {}: {:.0f} us a step, {} by halves, {} if they cost nothing\n",
                   workers, project_at_name(place), name, cell.now_us, percent(cell.gain()),
                   percent(cell.bound()));
      };
      for (int batch = 1; batch <= 256; batch *= 2) {
        for (std::int64_t context = 4096; context <= std::int64_t{1} << 20; context *= 2) {
          see(uniform, std::vector<std::int64_t>(static_cast<std::size_t>(batch), context),
              fmt::format("{} of {}k", batch, context >> 10));
        }
      }
      for (const int batch : {workers, 2 * workers, 4 * workers, 8 * workers, 16 * workers}) {
        for (const unsigned seed : {7U, 8U, 9U}) {
          see(mixed, mixed_lengths(batch, seed), fmt::format("{} mixed", batch));
        }
      }
      for (const bool is_mixed : {false, true}) {
        const Summary& s = is_mixed ? mixed : uniform;
        std::vector<double>& home_us = at_home_us[is_mixed ? 1 : 0];
        fmt::print("| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", workers,
                   project_at_name(place), is_mixed ? "mixed" : "equal", s.cells, s.some,
                   percent(s.most), s.where, percent(s.most_auto), percent(s.most_bound),
                   speedup(home_us, s.steps_us));
        home_us = s.steps_us;
      }
    }
  }
}

}  // namespace
}  // namespace tributary

int main(int argc, char** argv) {
  CLI::App app("What overlapping the halves of a round would gain at best, predicted");
  std::string gpu = "h200";
  bool cells = false;
  app.add_option("--gpu", gpu, "Built-in figures: h100, h200, cpu");
  app.add_flag("--cells", cells, "Each cell, on the standard error");
  CLI11_PARSE(app, argc, argv);
  try {
    tributary::run(gpu, cells);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  return 0;
}
