#include "deploy/service/worker/leader/accusations.h"

namespace tributary {

void Accusations::add(int rank, std::span<const int> others) {
  waited_for_[rank].assign(others.begin(), others.end());
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
