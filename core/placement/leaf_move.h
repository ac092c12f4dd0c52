// A move of leaves from one worker to another, as it is planned.
#pragma once

#include <cstdint>

#include "core/cache/sequence_table.h"

namespace tributary {

/// Full leaves [first_leaf, end_leaf) of a sequence, all on one worker, go to worker `to`.
struct LeafMove {
  SequenceId id = 0;
  std::int32_t first_leaf = 0;
  std::int32_t end_leaf = 0;
  std::int32_t to = 0;
  friend bool operator==(const LeafMove&, const LeafMove&) = default;
};

}  // namespace tributary
