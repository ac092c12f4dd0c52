// The prefix of a trace's request, from its hash_ids.
#pragma once

#include <cstdint>
#include <span>

#include "core/sequencer/admit_request.h"
#include "core/workload/trace.h"

namespace tributary {

/// Names as many blocks as hash_ids tell apart of a prompt of `prompt_tokens`, which is the trace's
/// times `length_scale`. Two requests have equal keys where all ids up to there are equal. Blocks
/// have about as many tokens as an id stands for, in whole pages, and divide the leaf (a power of
/// two). A request without ids has no prefix.
[[nodiscard]] Prefix trace_prefix(std::span<const std::int64_t> hash_ids,
                                  std::int64_t prompt_tokens, double length_scale, int leaf_tokens);

}  // namespace tributary
