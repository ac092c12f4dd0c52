// Which of two pools is asked first for a new sequence.
#pragma once

#include <compare>
#include <cstddef>

namespace tributary {

/// The smaller one is asked first; of equal ones, the first by name.
struct PoolRank {
  double full_share = 0;  // of its pages, used or promised
  std::size_t sequences = 0;

  friend auto operator<=>(const PoolRank&, const PoolRank&) = default;
};

}  // namespace tributary
