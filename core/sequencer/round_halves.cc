#include "core/sequencer/round_halves.h"

#include <algorithm>

namespace tributary {

void RoundHalves::add(SequenceId id, std::span<const LeafRun> runs, std::int32_t home,
                      std::int64_t tokens) {
  const PlacedSequence s{.runs = {runs.begin(), runs.end()}, .home = home, .tokens = tokens};
  const bool exchanged = s.exchanged();
  std::array<int, 2> halves{};
  if (removed_ && removed_->id == id) {
    halves = removed_->halves;
  } else {
    // The first of each kind begin in different halves.
    std::int64_t& seen = seen_[exchanged ? 1 : 0];
    halves = {static_cast<int>((seen++ + (exchanged ? 0 : 1)) % 2), exchanged ? 0 : 1};
  }
  removed_.reset();
  for (std::size_t i = 0; i < splits_.size(); ++i) splits_[i].add(id, s, halves[i]);
  look_again();
}

void RoundHalves::remove(SequenceId id) {
  removed_ = Removed{id, {splits_[0].half_of(id), splits_[1].half_of(id)}};
  for (Halves& halves : splits_) halves.remove(id);
  look_again();
}

void RoundHalves::grow(SequenceId id, std::int32_t worker, std::int64_t tokens) {
  for (Halves& halves : splits_) halves.grow(id, worker, tokens);
}

void RoundHalves::look_again() {
  looks_left_ = std::max(looks_left_, kLooksAfterAChange);
}

void RoundHalves::begun(std::size_t steps, const PoolLoad& whole, const RoundPrices& prices) {
  begun_ += steps;
  if (begun_ < splits_[0].size()) return;
  begun_ = 0;
  improve(whole, prices);
}

void RoundHalves::improve(const PoolLoad& whole, const RoundPrices& prices) {
  if (overlap_ == Overlap::kAlways && splits_[chosen_].cut()) return;
  if (looks_left_ == 0) {
    if (++rested_ < kRests) return;
    rested_ = 0;
    looks_left_ = splits_[0].size();
  }
  std::size_t moved = 0;
  for (Halves& halves : splits_) moved += halves.improve(prices, kLooks);
  looks_left_ -= std::min(looks_left_, kLooks);
  if (moved > 0) look_again();
  choose(whole, prices);
}

void RoundHalves::choose(const PoolLoad& whole, const RoundPrices& prices) {
  const std::array us{splits_[0].layer_us(prices), splits_[1].layer_us(prices)};
  chosen_ = us[1] < us[0] ? 1 : 0;
  const WholeRound now = predict_whole(whole, prices);
  gain_ = prices.config().layers * (now.layer_us - us[chosen_]) / now.step_us;
  on_ = overlap_ == Overlap::kAlways || gain_ >= (on_ ? kPaysNoMore : kOverlapPays);
}

}  // namespace tributary
