// Decode attention with every instruction set of the machine that works on bf16, beside the choice
// of the table of processors (kernels/cpu/processor_choice.h).
#pragma once

#include <span>

#include "bench/calibrated.h"

namespace tributary::bench {

/// Prints GFLOP/s of each, measured in turn, for batches of each number of heads, and says where
/// the chosen one is not the fastest. With as many threads as `machine` measures.
void compare_instruction_sets(Machine& machine, std::span<const int> heads_counts);

}  // namespace tributary::bench
