#include "core/cost/overlap.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "core/cost/halves.h"

namespace tributary {
namespace {

PoolLoad empty_load(const CostModelConfig& config, int workers) {
  return {workers, config.workers_per_node, config.leaf_tokens, 0};
}

}  // namespace

OverlapGain predict_overlap(const CostModelConfig& config,
                            std::span<const PlacedSequence> sequences, int workers) {
  const RoundPrices prices(config, workers);
  PoolLoad load = empty_load(config, workers);
  for (const PlacedSequence& s : sequences) load.add(s);
  const WholeRound whole = predict_whole(load, prices);

  OverlapGain gain;
  gain.step_us = gain.halves_us = whole.step_us;
  gain.free_us = std::numeric_limits<double>::infinity();
  for (const Exchange exchange : {Exchange::kAllToAll, Exchange::kAllGather}) {
    const RoundTimes times = load.round(exchange, prices);
    const WorkerTimes& t = times.slowest;
    const double hidden = std::min(t.attend_us, t.queries_us + t.states_us + t.combine_us);
    gain.free_us =
        std::min(gain.free_us, times.step_us(config, load.sequences()) - config.layers * hidden);
  }
  if (sequences.size() < 2 || !load.exchange().travels()) return gain;

  double least = std::numeric_limits<double>::infinity();
  const auto look_at = [&](auto in_first) {
    for (const int first : {0, 1}) {
      Halves halves(empty_load(config, workers));
      std::array<std::size_t, 2> seen{};  // that are whole, that are exchanged
      for (std::size_t i = 0; i < sequences.size(); ++i) {
        const bool exchanged = sequences[i].exchanged();
        std::size_t& number = seen[exchanged ? 1 : 0];
        halves.add(i, sequences[i], in_first(exchanged, number) ? first : 1 - first);
        ++number;
      }
      while (halves.improve(prices, halves.size()) > 0) {
      }
      least = std::min(least, halves.layer_us(prices));
    }
  };
  look_at([](bool, std::size_t number) { return number % 2 == 0; });
  look_at([](bool exchanged, std::size_t) { return exchanged; });
  gain.halves_us = whole.step_us + config.layers * (least - whole.layer_us);
  return gain;
}

}  // namespace tributary
