#include "deploy/service/client/items_error.h"

#include <algorithm>

namespace tributary {

void throw_if_failed(std::vector<ItemFailure> failed) {
  if (failed.empty()) return;
  std::ranges::sort(failed, {}, &ItemFailure::index);
  throw ItemsError(std::move(failed));
}

}  // namespace tributary
