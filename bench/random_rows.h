// Measures attention to selected rows against attention to as many rows in sequence, and against a
// plain loop that copies the selected ones.
#pragma once

#include <span>

#include "bench/calibrated.h"
#include "core/interface/backend.h"

namespace tributary::bench {

/// Prints, for each number of heads and each length of a sequence, the time of 2,048 random rows in
/// leaves of several sizes, beside the other two in turn.
void random_rows(Machine& machine, Backend& backend, std::span<const int> heads,
                 std::span<const int> lengths);

}  // namespace tributary::bench
