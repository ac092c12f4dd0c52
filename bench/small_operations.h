// Measures the small operations of a step (append, merge, RMSNorm, RoPE) against the memory that
// they move.
#pragma once

#include "bench/calibrated.h"
#include "core/interface/backend.h"

namespace tributary::bench {

/// Prints GB/s moved by each for a batch of 64 tokens of DeepSeek-V3, beside a copy of as many
/// bytes that is measured in turn with it.
void small_operations(Machine& machine, Backend& backend);

}  // namespace tributary::bench
