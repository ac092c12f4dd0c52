// Products with the same shape of weight in each form that the CPU backend keeps.
#pragma once

#include "bench/calibrated.h"
#include "core/interface/backend.h"

namespace tributary::bench {

/// Prints microseconds, GB/s and the share of what a reading loop reaches, for batches of 16 and 1
/// and two matrices of DeepSeek-V3, with weights kept as fp32, bf16 and FP8, measured in turn.
void weight_forms(Machine& machine, Backend& backend);

}  // namespace tributary::bench
