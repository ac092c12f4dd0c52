// Floats to elements of a narrower type in memory, and back.
#pragma once

#include <cstddef>
#include <span>

#include "core/base/dtype.h"

namespace tributary {

/// Stores floats as `type`, kF32 or kBF16 (rounded to nearest even), dense, aligned or not. Throws
/// kInvalidArgument for another type.
void store_elements(DType type, std::span<const float> values, std::byte* out);
/// Loads as many elements as `values` holds; the same types and errors.
void load_elements(DType type, const std::byte* in, std::span<float> values);
/// Rounds floats to the values that storing and loading would give.
void round_elements(DType type, std::span<float> values);

}  // namespace tributary
