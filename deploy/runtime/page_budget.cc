#include "deploy/runtime/page_budget.h"

#include <cmath>

#include "core/base/error.h"
#include "core/base/limits.h"

namespace tributary {

std::int32_t page_budget(double kv_gib, int layers, const RowLayout& row) {
  const double page_bytes =
      static_cast<double>(layers) * kPageTokens * static_cast<double>(row.bytes());
  const double pages = std::floor(kv_gib * 0x1p30 / page_bytes);
  if (!(pages >= 1 && pages <= 0x7fffffff)) {
    fail(ErrorCode::kInvalidArgument,
         "--kv-gib is {}: {:.0f} pages of {:.0f} bytes ({} layers), expected 1 .. 2^31 - 1", kv_gib,
         pages, page_bytes, layers);
  }
  return static_cast<std::int32_t>(pages);
}

}  // namespace tributary
