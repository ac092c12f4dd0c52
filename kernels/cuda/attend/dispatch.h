// Internal to kernels/cuda: maps the fields of a launch to the numbers and types that kernels are
// compiled for, on a device and on emulated threads.
#pragma once

#include <array>
#include <type_traits>

#include "core/base/dtype.h"
#include "core/model/row_format.h"
#include "kernels/cuda/attend/attend.h"
#include "kernels/cuda/attend/codes.h"
#include "kernels/cuda/attend/few_rows_shape.h"

namespace tributary::cuda {

/// launch(tiles, selected, codes), each an integral_constant, for units of 16, 32 or 64 rows;
/// `otherwise` for others.
template <typename Result, typename Launch>
Result with_few_rows(const AttendLaunch& attend, Result otherwise, const Launch& launch) {
  static_assert(kRowTileCounts == std::array{1, 2, 4});
  const auto with_flag = [](bool flag, const auto& with) {
    return flag ? with(std::true_type()) : with(std::false_type());
  };
  const auto with_tiles = [&](auto tiles) {
    return with_flag(attend.selected.most != 0, [&](auto selected) {
      return with_flag(holds_codes(attend.layout.row_format),
                       [&](auto codes) { return launch(tiles, selected, codes); });
    });
  };
  switch (attend.unit_rows) {
    case 16:
      return with_tiles(std::integral_constant<int, 1>());
    case 32:
      return with_tiles(std::integral_constant<int, 2>());
    case 64:
      return with_tiles(std::integral_constant<int, 4>());
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

/// The same with the elements of rows: Codes for those of which they are not plain.
template <typename Launch>
auto with_elements(RowFormat rows, DType query, const Launch& launch) {
  if (const auto elements = plain_elements(rows)) return with_elements(*elements, query, launch);
  return query == DType::kBF16 ? launch(Codes(), bf16()) : launch(Codes(), float());
}

}  // namespace tributary::cuda
