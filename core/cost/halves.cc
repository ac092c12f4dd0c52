#include "core/cost/halves.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace tributary {
namespace {

constexpr std::array kExchanges{Exchange::kAllToAll, Exchange::kAllGather};

/// By less is no progress, and sums of another order differ by roundings.
constexpr double kShorter = 1 - 1e-4;

double in_turn_us(const WorkerTimes& first, const WorkerTimes& second) {
  return first.queries_us + std::max(first.attend_us, second.queries_us) +
         std::max(second.attend_us, first.states_us + first.combine_us) + second.states_us +
         second.combine_us;
}

std::array<WorkerTimes, 2> times_of(const PoolLoad& load, const RoundPrices& prices) {
  return {load.round(kExchanges[0], prices).slowest, load.round(kExchanges[1], prices).slowest};
}

}  // namespace

WholeRound predict_whole(const PoolLoad& load, const RoundPrices& prices) {
  WholeRound whole{.step_us = std::numeric_limits<double>::infinity(), .layer_us = 0};
  for (const Exchange exchange : kExchanges) {
    const RoundTimes times = load.round(exchange, prices);
    const double us = times.step_us(prices.config(), load.sequences());
    if (us >= whole.step_us) continue;
    const WorkerTimes& t = times.slowest;
    whole = {us, t.queries_us + t.attend_us + t.states_us + t.combine_us};
  }
  return whole;
}

void Halves::add(SequenceId id, PlacedSequence sequence, int half) {
  loads_[static_cast<std::size_t>(half)].add(sequence);
  index_.emplace(id, sequences_.size());
  sequences_.push_back({id, std::move(sequence), half});
}

void Halves::remove(SequenceId id) {
  const auto found = index_.find(id);
  Member& member = sequences_[found->second];
  const PlacedSequence& s = member.sequence;
  loads_[static_cast<std::size_t>(member.half)].remove(s.runs, s.home, s.tokens);
  index_[sequences_.back().id] = found->second;
  if (&member != &sequences_.back()) member = std::move(sequences_.back());
  sequences_.pop_back();
  index_.erase(id);
}

void Halves::grow(SequenceId id, std::int32_t worker, std::int64_t tokens) {
  Member& member = sequences_[index_.at(id)];
  member.sequence.tokens += tokens;
  loads_[static_cast<std::size_t>(member.half)].grow(worker, tokens);
}

void Halves::swap(Member& member) {
  const PlacedSequence& s = member.sequence;
  loads_[static_cast<std::size_t>(member.half)].remove(s.runs, s.home, s.tokens);
  member.half = 1 - member.half;
  loads_[static_cast<std::size_t>(member.half)].add(s);
}

double Halves::layer_us(const RoundPrices& prices) const {
  double least = std::numeric_limits<double>::infinity();
  if (!cut()) return least;
  const auto second = times_of(loads_[1], prices);
  for (const WorkerTimes& one : times_of(loads_[0], prices)) {
    for (const WorkerTimes& other : second) least = std::min(least, in_turn_us(one, other));
  }
  return least;
}

std::size_t Halves::improve(const RoundPrices& prices, std::size_t count) {
  std::size_t moved = 0;
  double least = layer_us(prices);
  for (count = std::min(count, sequences_.size()); count > 0; --count) {
    next_ = next_ + 1 < sequences_.size() ? next_ + 1 : 0;
    Member& member = sequences_[next_];
    swap(member);
    const double with = layer_us(prices);
    if (with < kShorter * least) {
      least = with;
      ++moved;
    } else {
      swap(member);
    }
  }
  return moved;
}

}  // namespace tributary
