// Internal to kernels/cuda: maps the fields of a launch to the numbers and types that kernels are
// compiled for, on a device and on emulated threads.
#pragma once

#include <array>
#include <type_traits>

#include "core/base/dtype.h"
#include "kernels/cuda/attend/few_rows_shape.h"

namespace tributary::cuda {

/// launch(std::integral_constant<int, tiles>()) for units of 16, 32 or 64 rows; `otherwise` for
/// others.
template <typename Result, typename Launch>
Result with_row_tiles(int unit_rows, Result otherwise, const Launch& launch) {
  static_assert(kRowTileCounts == std::array{1, 2, 4});
  switch (unit_rows) {
    case 16:
      return launch(std::integral_constant<int, 1>());
    case 32:
      return launch(std::integral_constant<int, 2>());
    case 64:
      return launch(std::integral_constant<int, 4>());
    default:
      return otherwise;
  }
}

/// launch(First(), Second()) with the elements of two types, each kBF16 or kF32.
template <typename Launch>
auto with_elements(DType first, DType second, const Launch& launch) {
  const bool halves = second == DType::kBF16;
  if (first == DType::kBF16) {
    return halves ? launch(bf16(), bf16()) : launch(bf16(), float());
  }
  return halves ? launch(float(), bf16()) : launch(float(), float());
}

}  // namespace tributary::cuda
