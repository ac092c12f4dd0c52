// The order in which pools are asked for a new sequence.
#pragma once

#include <cstddef>
#include <tuple>

namespace tributary {

/// The smaller one is asked first; of equal ones, the first by name.
struct PoolRank {
  double full_share = 0;  // of its pages, used or promised
  std::size_t sequences = 0;

  friend bool operator<(const PoolRank& a, const PoolRank& b) noexcept {
    return std::tie(a.full_share, a.sequences) < std::tie(b.full_share, b.sequences);
  }
};

}  // namespace tributary
