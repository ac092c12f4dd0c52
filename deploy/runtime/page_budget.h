// The number of pages of latent rows that fit into a worker's memory.
#pragma once

#include <cstdint>

#include "core/model/row_format.h"

namespace tributary {

/// Pages of `layers` layers that fit into `kv_gib` GiB. Throws kInvalidArgument, naming --kv-gib,
/// unless that is 1 .. 2^31 - 1.
[[nodiscard]] std::int32_t page_budget(double kv_gib, int layers, const RowLayout& row);

}  // namespace tributary
