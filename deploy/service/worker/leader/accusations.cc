#include "deploy/service/worker/leader/accusations.h"

namespace tributary {

void Accusations::begin(std::uint64_t generation) {
  if (generation <= generation_) return;
  generation_ = generation;
  waited_for_.clear();
}

void Accusations::add(std::uint64_t generation, int rank, std::span<const int> others) {
  begin(generation);
  if (generation == generation_) waited_for_[rank] = {others.begin(), others.end()};
}

std::optional<int> Accusations::verdict() const {
  std::map<int, int> accusers;  // by who was waited for
  for (const auto& [rank, others] : waited_for_) {
    for (const int other : others) ++accusers[other == 0 ? rank : other];
  }
  std::optional<int> most;
  for (const auto& [rank, count] : accusers) {
    if (!most || count >= accusers.at(*most)) most = rank;
  }
  return most;
}

}  // namespace tributary
