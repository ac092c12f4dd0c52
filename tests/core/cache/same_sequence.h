// Compares two copies of the sequence table.
#pragma once

#include <algorithm>

#include "core/cache/sequence_table.h"

namespace tributary {

[[nodiscard]] inline bool same_sequence(const Sequence& a, const Sequence& b) {
  return a.id == b.id && a.epoch == b.epoch && a.lost_since == b.lost_since && a.home == b.home &&
         a.tag == b.tag && a.prompt_tokens == b.prompt_tokens &&
         a.present_tokens == b.present_tokens && a.limit_tokens == b.limit_tokens &&
         a.length == b.length &&
         std::ranges::equal(a.leaves, b.leaves, [](const Leaf& x, const Leaf& y) {
           return x.owner == y.owner && x.pages == y.pages;
         });
}

}  // namespace tributary
