// Walking the leaves of a range of tokens, and the workers that own them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cache/sequence_table.h"

namespace tributary {

/// The part of a range of tokens that lies in one leaf; never empty.
struct LeafPart {
  std::int64_t leaf = 0;            // index into Sequence::leaves
  std::int64_t begin = 0, end = 0;  // positions in the sequence
  std::int64_t first_row = 0;       // `begin` as a row of the leaf

  [[nodiscard]] std::int64_t rows() const noexcept { return end - begin; }
};

/// Calls visit(LeafPart) for each leaf of the positions [begin, end), in order.
template <typename Visit>
void for_each_leaf(std::int64_t begin, std::int64_t end, std::int64_t leaf_tokens, Visit visit) {
  while (begin < end) {
    const std::int64_t leaf = begin / leaf_tokens;
    const std::int64_t part_end = std::min((leaf + 1) * leaf_tokens, end);
    visit(LeafPart{leaf, begin, part_end, begin - leaf * leaf_tokens});
    begin = part_end;
  }
}

/// The same with the leaf itself: visit(const Leaf&, LeafPart).
template <typename Visit>
void for_each_leaf(const Sequence& sequence, std::int64_t begin, std::int64_t end,
                   std::int64_t leaf_tokens, Visit visit) {
  for_each_leaf(begin, end, leaf_tokens, [&](const LeafPart& part) {
    visit(sequence.leaves[static_cast<std::size_t>(part.leaf)], part);
  });
}

/// Calls visit(owner, first leaf, end leaf) for each run of neighbours with one owner among the
/// first `leaves` leaves.
template <typename Visit>
void for_each_owner_run(const Sequence& sequence, std::int64_t leaves, Visit visit) {
  const auto owner_of = [&](std::int64_t leaf) {
    return sequence.leaves[static_cast<std::size_t>(leaf)].owner;
  };
  for (std::int64_t begin = 0; begin < leaves;) {
    std::int64_t end = begin + 1;
    while (end < leaves && owner_of(end) == owner_of(begin)) ++end;
    visit(owner_of(begin), begin, end);
    begin = end;
  }
}

}  // namespace tributary
