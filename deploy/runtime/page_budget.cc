#include "deploy/runtime/page_budget.h"

#include <cmath>

#include "core/base/error.h"
#include "core/interface/backend.h"

namespace tributary {

std::int32_t page_budget(double kv_gib, int layers, int latent_dim, DType row_dtype) {
  const double page_bytes = static_cast<double>(layers) * kPageTokens * latent_dim *
                            static_cast<double>(dtype_bytes(row_dtype));
  const double pages = std::floor(kv_gib * 0x1p30 / page_bytes);
  if (!(pages >= 1 && pages <= 0x7fffffff)) {
    fail(ErrorCode::kInvalidArgument,
         "--kv-gib is {}: {:.0f} pages of {:.0f} bytes ({} layers), expected 1 .. 2^31 - 1", kv_gib,
         pages, page_bytes, layers);
  }
  return static_cast<std::int32_t>(pages);
}

}  // namespace tributary
