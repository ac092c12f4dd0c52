// What a row format costs attention, beside the bf16 rows that its rows were made of: a property of
// the format alone, in float64, for latents drawn at random.
#pragma once

#include "core/model/row_format.h"

namespace tributary {

struct RowFormatError {
  double o = 0;        // relative, of all heads
  double worst_o = 0;  // of the worst head
  double lse = 0;      // absolute, of the worst head
};

/// Of 16 heads over 4,096 rows of 512 + 64 normal latents, k_pe four times as large, the first 8
/// columns `outliers` times. Scores have `deviation` over the rows. Throws kInvalidArgument for an
/// unknown format.
[[nodiscard]] RowFormatError row_format_error(RowFormat format, double deviation,
                                              double outliers = 1);

}  // namespace tributary
