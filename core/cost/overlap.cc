#include "core/cost/overlap.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <vector>

namespace tributary {
namespace {

constexpr std::array kExchanges{Exchange::kAllToAll, Exchange::kAllGather};

PoolLoad empty_load(const CostModelConfig& config, int workers) {
  return {workers, config.workers_per_node, config.leaf_tokens, 0};
}

/// Of one layer, but for its projections and its agreement.
double in_turn_us(const WorkerTimes& first, const WorkerTimes& second) {
  return first.queries_us + std::max(first.attend_us, second.queries_us) +
         std::max(second.attend_us, first.states_us + first.combine_us) + second.states_us +
         second.combine_us;
}

/// The shorter of both orders and of the halves' own exchanges.
double halves_us(const PoolLoad& a, const PoolLoad& b, const RoundPrices& prices) {
  const auto times = [&](const PoolLoad& load) {
    return std::array{load.round(kExchanges[0], prices).slowest,
                      load.round(kExchanges[1], prices).slowest};
  };
  const auto of_b = times(b);
  double least = std::numeric_limits<double>::infinity();
  for (const WorkerTimes& one : times(a)) {
    for (const WorkerTimes& other : of_b) {
      least = std::min({least, in_turn_us(one, other), in_turn_us(other, one)});
    }
  }
  return least;
}

/// A round in two halves, improved sequence by sequence.
class Halves {
 public:
  Halves(std::span<const PlacedSequence> sequences, const PoolLoad& empty)
      : sequences_(sequences), loads_{empty, empty} {}

  void add(std::size_t index, bool first) {
    half_.push_back(first ? 0 : 1);
    loads_[half_.back()].add(sequences_[index]);
  }

  /// Moves what makes the round shorter to the other half, as long as something does.
  [[nodiscard]] double descend(const RoundPrices& prices) {
    double least = us(prices);
    for (bool shorter = true; shorter;) {
      shorter = false;
      for (std::size_t i = 0; i < sequences_.size(); ++i) {
        swap(i);
        const double with = us(prices);
        if (with < kShorter * least) {
          least = with;
          shorter = true;
        } else {
          swap(i);
        }
      }
    }
    return least;
  }

 private:
  /// By less is no progress, and sums of another order differ by roundings.
  static constexpr double kShorter = 1 - 1e-4;

  /// Neither half is empty.
  [[nodiscard]] double us(const RoundPrices& prices) const {
    return loads_[0].sequences() == 0 || loads_[1].sequences() == 0
               ? std::numeric_limits<double>::infinity()
               : halves_us(loads_[0], loads_[1], prices);
  }
  void swap(std::size_t index) {
    const PlacedSequence& s = sequences_[index];
    loads_[half_[index]].remove(s.runs, s.home, s.tokens);
    half_[index] = 1 - half_[index];
    loads_[half_[index]].add(s);
  }

  std::span<const PlacedSequence> sequences_;
  std::array<PoolLoad, 2> loads_;
  std::vector<std::size_t> half_;
};

}  // namespace

OverlapGain predict_overlap(const CostModelConfig& config,
                            std::span<const PlacedSequence> sequences, int workers) {
  const RoundPrices prices(config, workers);
  PoolLoad whole = empty_load(config, workers);
  for (const PlacedSequence& s : sequences) whole.add(s);

  OverlapGain gain;
  gain.step_us = gain.free_us = std::numeric_limits<double>::infinity();
  RoundTimes round;
  for (const Exchange exchange : kExchanges) {
    const RoundTimes times = whole.round(exchange, prices);
    const WorkerTimes& t = times.slowest;
    const double us = times.step_us(config, whole.sequences());
    const double hidden = std::min(t.attend_us, t.queries_us + t.states_us + t.combine_us);
    gain.free_us = std::min(gain.free_us, us - config.layers * hidden);
    if (us >= gain.step_us) continue;
    gain.step_us = us;
    round = times;
  }

  // Beside what the halves overlap nothing changes.
  const WorkerTimes& t = round.slowest;
  const double rest_us =
      gain.step_us - config.layers * (t.queries_us + t.attend_us + t.states_us + t.combine_us);
  gain.halves_us = gain.step_us;
  if (sequences.size() < 2 || !whole.exchange().travels()) return gain;
  double least = std::numeric_limits<double>::infinity();
  const auto look_at = [&](auto in_first) {
    Halves halves(sequences, empty_load(config, workers));
    std::array<std::size_t, 2> seen{};  // that are whole, that are exchanged
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const bool exchanged = sequences[i].exchanged();
      std::size_t& number = seen[exchanged ? 1 : 0];
      halves.add(i, in_first(exchanged, number));
      ++number;
    }
    least = std::min(least, halves.descend(prices));
  };
  look_at([](bool, std::size_t number) { return number % 2 == 0; });
  look_at([](bool exchanged, std::size_t) { return exchanged; });
  gain.halves_us = rest_us + config.layers * least;
  return gain;
}

}  // namespace tributary
