// Where a sequence goes whose first blocks the pool has: where placement wants it, or where they
// lie.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/cache/block_store.h"
#include "core/placement/placement.h"
#include "core/sequencer/admit_request.h"
#include "core/sequencer/pool_ledger.h"

namespace tributary {

/// A place, and the first blocks of the sequence that lie there.
struct SharedPlace {
  Assignment assignment;
  std::vector<NamedBlock*> shared;
};

/// The cheapest of: `chosen`, where placement wants the whole sequence (no value: it has no room);
/// the worker with the most of its first blocks; the workers of its first blocks, leaf by leaf, and
/// `chosen` for the rest. The price is what the predicted steps of all its new tokens take, and for
/// each row that is not there what a client takes to compute and push it. So a few rows do not pile
/// everybody up on one worker, and a long prefix is worth a longer step. `names` as of
/// block_names(). No value where none has room.
[[nodiscard]] std::optional<SharedPlace> place_with_blocks(const PoolLedger& ledger,
                                                           const AdmitRequest& request,
                                                           const std::vector<std::string>& names,
                                                           std::optional<Assignment> chosen);

}  // namespace tributary
