// Rows of FP8 codes: a cache of them gives the bits of a bf16 cache that holds their values.
#pragma once

#include <vector>

#include "core/interface/backend.h"
#include "tests/kernels/latent_case.h"

namespace tributary::test {

/// `fp8_ds_mla`, and `fp8` with a scale that is no power of two.
[[nodiscard]] std::vector<RowFormat> formats_of_codes();

/// States over leaves of several lengths and one to four tokens, of hard rows, in one call and of a
/// leaf alone, over all rows and over selected ones. shape.row_format is of codes.
void expect_bits_of_values(Backend& backend, const LatentShape& shape);

}  // namespace tributary::test
