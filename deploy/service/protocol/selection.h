// A token's selection as it travels: the positions that the token attends to, ascending, and -1
// behind the last; as many numbers as the pool's topk.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/error.h"

namespace tributary::wire {

/// Puts positions in that order; numbers below -1 come behind all others but -1. `scratch` is
/// memory for the next call. 2,048 random positions take 5 us, std::sort 62 (Zen 5).
void order_selection(std::span<std::int32_t> list, std::vector<std::int32_t>& scratch);

/// Checks the selection of the token at position `own`. A message names the number's place in the
/// list, its value and its bound.
[[nodiscard]] Status check_selection(std::span<const std::int32_t> list, std::int64_t own);

}  // namespace tributary::wire
